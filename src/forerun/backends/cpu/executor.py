"""The native executor: a whole program in one call of the C library.

Activations are float32 throughout; weights and cache keep their own type. Every row is computed in an order of its own,
so its bits depend neither on the other rows nor on the number of threads.
"""

from ctypes import c_void_p
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.backends.bind import bind_weights
from forerun.backends.cpu.cores import last_cache_bytes
from forerun.backends.cpu.layouts import EPILOGUES, OP_KINDS, Heads, NativeOp, Pass, Shape
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.program import NativeProgram
from forerun.backends.cpu.sampler import address
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import Sublayer, all_sublayers
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.program import Op
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import Weight, WeightSource

MOST_OF_CACHE: Final = 0.75  # that weights may take and still be read from it in every pass
NOT_RUN: Final = ("mask", "select_rows")  # what they say is part of a pass


class NativeExecutor:
    """A program bound to weights and a cache."""

    def __init__(self, spec: ModelSpec, program: tuple[Op, ...], weights: WeightSource, cache: TreeCache) -> None:
        self._spec, self._program, self._cache = spec, program, cache
        self._sublayers = {name: number for number, name in enumerate(all_sublayers(spec.num_layers))}
        self._bound = bind_weights(
            spec,
            program,
            weights,
            num_positions=cache.capacity,
            rope_dtype=torch.float32,
            pack_linear=pack_for,
            pack_norm=lambda weight_H: weight_H.float().contiguous(),
        )
        self._table_VH = self._bound.table_VH.contiguous()
        self._stream_past_caches()
        self._shape = self._describe_model()
        self._fused = self._build(fuse=True)
        self._stepwise: NativeProgram | None = None
        self._pass = PassBuffers(self._sublayers)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features are float32.

        `observe` sees each op that computes something, and the buffer it wrote; ops are then run one by one, unfused.
        """
        output = ForwardOutput(
            logits=torch.empty(inputs.num_logit_rows, self._spec.vocab_size),
            features=self._room_for_features(inputs) if inputs.taps else None,
        )
        one_pass = self._pass.fill(inputs, output.features)
        if observe is None:
            self._fused.run(one_pass, output.logits)
        else:
            self._run_stepwise(inputs, one_pass, output, observe)
        return output

    def _room_for_features(self, inputs: ForwardInput) -> Tensor:
        return torch.empty(len(inputs.token_ids), len(inputs.taps), self._spec.hidden_size)

    def _run_stepwise(self, inputs: ForwardInput, one_pass: Pass, output: ForwardOutput, observe: Observer) -> None:
        if self._stepwise is None:
            self._stepwise = self._build(fuse=False)
        is_selected = False
        for number, op in enumerate(self._computing_ops()):
            is_selected = is_selected or op is self._program[-2]
            num_rows = inputs.num_logit_rows if is_selected else len(inputs.token_ids)
            if num_rows == 0 or not op.is_part_of(inputs.skipped, inputs.taps):
                continue
            self._stepwise.run(one_pass, output.logits, number, number + 1)
            match op.writes:
                case "logits":
                    observe(op, output.logits)
                case "features":
                    assert output.features is not None, "a tap that is part of a pass"
                    observe(op, output.features[:, : inputs.taps.index(op.layer) + 1])
                case written:
                    observe(op, self._stepwise.buffer(written, num_rows))

    def _computing_ops(self) -> list[Op]:
        return [op for op in self._program if op.kind not in NOT_RUN]

    def _build(self, *, fuse: bool) -> NativeProgram:
        spec = self._spec
        widths = {
            "x": spec.hidden_size,
            "h": spec.hidden_size,
            "qkv": spec.q_size + 2 * spec.kv_size,
            "q": spec.q_size,
            "mixed": spec.q_size,
            "gate_up": 2 * spec.intermediate_size,
            "gated": spec.intermediate_size,
            "logits": spec.vocab_size,
        }
        numbers = {name: number for number, name in enumerate(widths)}
        ops: list[NativeOp] = []
        previous: Op | None = None
        for op in self._computing_ops():
            native = self._lower(op, numbers)
            if fuse and previous is not None and previous.kind == "norm":
                native.norm, native.reads = ops[-1].norm, ops[-1].reads
                ops[-1] = native
            elif fuse and op.kind == "silu_mul":
                ops[-1].epilogue, ops[-1].writes = EPILOGUES["silu_mul"], native.writes
            else:
                ops.append(native)
            previous = op
        return NativeProgram(self._shape, ops, widths, "logits", [self._bound, self._table_VH, self._cache])

    def _lower(self, op: Op, numbers: dict[str, int]) -> NativeOp:
        assert op.kind != "linear_add" or op.reads[1] == op.writes, "rows that skip a sum keep what is there"
        native = NativeOp(
            kind=OP_KINDS["linear" if op.kind == "linear_add" else op.kind],
            reads=numbers.get(op.reads[0], -1),
            writes=numbers.get(op.writes, -1),
            residual=numbers[op.reads[1]] if op.kind == "linear_add" else -1,
            sublayer=-1 if op.sublayer is None else self._sublayers[op.sublayer],
            layer=op.layer,
            after_select=int(op in self._program[-2:]),
        )
        if "linear" in op.kind:
            native.linear = self._bound.linears[op.weights].descriptor
            native.epilogue = EPILOGUES["add" if op.kind == "linear_add" else "store"]
        elif op.kind == "norm":
            native.norm = self._bound.norms[op.weights].data_ptr()
        elif op.weights in self._bound.head_norms:
            native.q_norm, native.k_norm = (norm.data_ptr() for norm in self._bound.head_norms[op.weights])
        return native

    def _describe_model(self) -> Shape:
        spec, cache = self._spec, self._cache
        keys, values = cache.keys_LSKD, cache.values_LSKD
        return Shape(
            heads=Heads(spec.num_heads, spec.num_kv_heads, spec.head_dim),
            num_layers=spec.num_layers,
            capacity=cache.capacity,
            eps=spec.norm_eps,
            table=self._table_VH.data_ptr(),
            table_is_bf16=int(self._table_VH.dtype == torch.bfloat16),
            cos_sin=self._bound.cos_sin_P2D.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            cache_is_bf16=int(keys.dtype == torch.bfloat16),
            num_sublayers=len(self._sublayers),
        )

    def _stream_past_caches(self) -> None:
        """Weights that no cache can hold until the next pass would only push out what is needed between passes."""
        linears = self._bound.linears.values()
        streams = sum(linear.num_bytes for linear in linears) > last_cache_bytes() * MOST_OF_CACHE
        for linear in linears:
            linear.descriptor.streams = streams


def pack_for(op: Op, weight: Weight, bias_O: Tensor | None) -> PackedLinear:
    """The weight of an op in the library's layout, gate and up side by side."""
    paired = weight.values_OI.shape[0] // 2 if op.writes == "gate_up" else 0
    return PackedLinear.pack(weight, bias_O, paired=paired)


class PassBuffers:
    """The memory through which a pass is described to the library, filled anew for each.

    Everything is kept such that the next pass is described right, wherever an interrupt stopped the last one.
    """

    def __init__(self, sublayers: dict[Sublayer, int]) -> None:
        self._sublayers, self._none_skipped = sublayers, frozenset[Sublayer]()
        self._skipped = np.zeros(max(1, len(sublayers)), np.uint8)
        self._skipped_now: frozenset[Sublayer] | None = self._none_skipped  # None: being changed
        self._rows = np.zeros((2, 0), np.int64)  # token ids and positions
        self._ancestry = np.zeros(0, np.bool_)
        self._pass = Pass()

    def fill(self, inputs: ForwardInput, features: Tensor | None) -> Pass:
        """The pass as the library reads it, valid until the next one is filled; taps write to `features`."""
        one_pass, num_rows = self._pass, len(inputs.token_ids)
        rows = self._rows
        if num_rows > rows.shape[1]:
            rows = self._rows = np.zeros((2, num_rows), np.int64)
        rows[0, :num_rows] = inputs.token_ids
        rows[1, :num_rows] = inputs.positions
        one_pass.token_ids = address(rows)
        one_pass.positions = one_pass.token_ids + rows.strides[0]
        one_pass.num_rows, one_pass.first_slot = num_rows, inputs.first_slot
        one_pass.prefix_len, one_pass.num_logit_rows = inputs.prefix_len, inputs.num_logit_rows
        if inputs.ancestry is None:
            one_pass.ancestry = None
        else:
            one_pass.ancestry = self._copy_ancestry(inputs.ancestry)
        if inputs.row_skips is None:
            one_pass.row_skips = None
        else:
            one_pass.row_skips = self._gate(inputs.row_skips)
        one_pass.taps = None if features is None else self._tap(inputs.taps, features)
        if inputs.skipped != self._skipped_now:
            self._skip(inputs.skipped)
        return one_pass

    def _tap(self, taps: tuple[int, ...], features: Tensor) -> int:
        self._taps = np.full(max(1, len(self._sublayers) // 2), -1, np.int32)  # held until the next such pass
        self._taps[list(taps)] = range(len(taps))
        self._pass.features, self._pass.num_taps = features.data_ptr(), len(taps)
        return self._taps.ctypes.data

    def _copy_ancestry(self, ancestry: NDArray[np.bool_]) -> int:
        size, room = ancestry.size, self._ancestry
        if size > len(room):
            room = self._ancestry = np.zeros(2 * size, np.bool_)
        room[:size].reshape(ancestry.shape)[...] = ancestry
        return address(room)

    def _gate(self, row_skips: NDArray[np.bool_]) -> int:
        num_sublayers = len(self._sublayers)
        assert row_skips.shape[1:] == (num_sublayers,), f"row skips {row_skips.shape}, {num_sublayers} sublayers"
        self._row_skips = np.ascontiguousarray(row_skips)  # held until the next such pass
        return self._row_skips.ctypes.data

    def _skip(self, skipped: frozenset[Sublayer]) -> None:
        self._skipped_now = None  # or, after an interrupt, the target's own passes could be taken for set up
        self._skipped[:] = 0
        self._skipped[[self._sublayers[name] for name in skipped]] = 1
        self._pass.skipped = self._skipped.ctypes.data if skipped else c_void_p()
        self._skipped_now = skipped
