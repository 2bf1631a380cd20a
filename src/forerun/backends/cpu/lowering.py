"""A program lowered to the library's ops: weights packed, norms and gates fused with the products beside them."""

from typing import Final

import torch
from torch import Tensor

from forerun.backends.bind import bind_weights
from forerun.backends.cpu.cores import last_cache_bytes
from forerun.backends.cpu.layouts import EPILOGUES, OP_KINDS, Heads, NativeOp, Shape
from forerun.backends.cpu.linear import PackedLinear
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import Weight, WeightSource

MOST_OF_CACHE: Final = 0.75  # that weights may take and still be read from it in every pass
NOT_RUN: Final = ("mask", "select_rows")  # their information is part of the description of a pass


class Lowering:
    """A program bound to weights and a cache, as the library reads it.

    Args of a caller: `shape` is the model and its cache, `ops` what computes something, `widths` every buffer's floats
    per row, `holds` whatever owns memory that shape and lowered ops point to.
    """

    def __init__(self, spec: ModelSpec, program: tuple[Op, ...], weights: WeightSource, cache: TreeCache) -> None:
        self._spec, self._cache, self._last_ops = spec, cache, program[-2:]
        self.ops = [op for op in program if op.kind not in NOT_RUN]
        self.sublayers = {name: number for number, name in enumerate(all_sublayers(spec.num_layers))}
        self._bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            rope_dtype=torch.float32,
            pack_linear=pack_for,
            pack_norm=lambda weight_H: weight_H.float().contiguous(),
        )
        self._table_VH = as_plain(self._bound.table).contiguous()
        self._stream_past_caches()
        self.shape = self._describe_model()
        self.holds = (self._bound, self._table_VH, cache)
        self.widths = {
            "x": spec.hidden_size,
            "h": spec.hidden_size,
            "qkv": spec.q_size + 2 * spec.kv_size,
            "q": spec.q_size,
            "mixed": spec.q_size,
            "gate_up": 2 * spec.intermediate_size,
            "gated": spec.intermediate_size,
            "logits": spec.vocab_size,
        }

    def lower(self, *, fuse: bool) -> list[NativeOp]:
        """The library's ops; unfused, they are `ops` one by one."""
        numbers = {name: number for number, name in enumerate(self.widths)}
        lowered: list[NativeOp] = []
        previous: Op | None = None
        for op in self.ops:
            native = self._lower(op, numbers)
            if fuse and previous is not None and previous.kind == "norm":
                native.norm, native.reads = lowered[-1].norm, lowered[-1].reads
                lowered[-1] = native
            elif fuse and op.kind == "silu_mul":
                lowered[-1].epilogue, lowered[-1].writes = EPILOGUES["silu_mul"], native.writes
            else:
                lowered.append(native)
            previous = op
        return lowered

    def _lower(self, op: Op, numbers: dict[str, int]) -> NativeOp:
        assert op.kind != "linear_add" or op.reads[1] == op.writes, "rows that skip a sum keep what is there"
        native = NativeOp(
            kind=OP_KINDS["linear" if op.kind == "linear_add" else op.kind],
            reads=numbers.get(op.reads[0], -1),
            writes=numbers.get(op.writes, -1),
            residual=numbers[op.reads[1]] if op.kind == "linear_add" else -1,
            sublayer=-1 if op.sublayer is None else self.sublayers[op.sublayer],
            layer=op.layer,
            after_select=int(op in self._last_ops),
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
            num_sublayers=len(self.sublayers),
        )

    def _stream_past_caches(self) -> None:
        """Weights that no cache can hold until the next pass would only push out what is needed between passes."""
        linears = self._bound.linears.values()
        streams = sum(linear.num_bytes for linear in linears) > last_cache_bytes() * MOST_OF_CACHE
        for linear in linears:
            linear.descriptor.streams = streams


def pack_for(op: Op, weight: Weight, bias_O: Tensor | None) -> PackedLinear:
    """The weight of an op in the library's layout, gate and up side by side."""
    paired = weight.shape[0] // 2 if op.writes == "gate_up" else 0
    return PackedLinear.pack(weight, bias_O, paired=paired)
