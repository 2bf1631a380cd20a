"""The device executor: a pass as five fused Triton kernels per layer, on a GPU recorded as one CUDA graph per shape.

The residual stream is float32; what matrix units read, and the cache, have the model's dtype. Every row is computed in
an order of its own, so its bits depend on no other row. What each kernel does is in `backends.gpu`.

Legend: R rows of a pass at most, V vocabulary, P positions, D head size.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.backends.gpu.graphs import GraphPool
from forerun.backends.gpu.language import on_device
from forerun.backends.gpu.launches import NARROW_ROWS, Buffers, Launch, LaunchList, Parameters, PassShape
from forerun.backends.gpu.passes.attention import SPLIT
from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.passes.weights import PackedLinear, pack
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.row_writer import RowWriter
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import SkipSet, all_sublayers
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.program import Op
from forerun.model.quantise import head_format, quantise
from forerun.model.rope import rope_table
from forerun.model.tree_cache import TreeCache
from forerun.runtime.inference import inference

MAX_ROWS: Final = 256  # of one pass
MAX_TAIL_ENTRIES: Final = 1 << 15
FIRST_DEVICE_WITH_OVERLAP: Final = (9, 0)  # programmatic dependent launch


class DeviceExecutor:
    """A program bound to weights and a cache. `weights` is emptied while linear layers are packed from it.

    Args of a caller that works on the device itself: `rows` is the table that every pass reads, `logits_RV` where
    narrow passes leave their scores.
    """

    def __init__(
        self, spec: ModelSpec, program: tuple[Op, ...], weights: dict[str, Tensor], cache: TreeCache,
        weight_format: WeightFormat,
    ) -> None:  # fmt: skip
        keys = cache.keys_LSKD
        self.spec, self.graphs = spec, GraphPool(str(keys.device))
        self._program, self._weights, self._cache, self._format = program, weights, cache, weight_format
        self.overlaps = can_overlap(keys.device)
        num_sublayers = 2 * spec.num_layers
        self.rows = RowTable(
            max_rows=MAX_ROWS, max_tail_entries=MAX_TAIL_ENTRIES, num_sublayers=num_sublayers, device=str(keys.device)
        )
        self._writer, self._parameters = RowWriter(self.rows), self._read_parameters()
        self.buffers = Buffers(
            self._parameters, max_rows=MAX_ROWS, max_splits=-(-cache.capacity // SPLIT), dtype=keys.dtype
        )
        self.logits_RV = torch.zeros(NARROW_ROWS, spec.vocab_size, device=keys.device)
        self._launches = LaunchList(self._parameters, self.buffers, self.rows, cache, overlaps=self.overlaps)
        self._lists: dict[SkipSet, list[tuple[Op, Launch]]] = {}
        self.head, self.fold = self._launches.head(program)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> Tensor:
        """Run the program; return float32 logits [num_logit_rows, V].

        `observe` sees the last op of every kernel, and the buffer it wrote.
        """
        with inference():
            self._writer.write(inputs)
            shape = shape_of(inputs)
            if shape.num_rows > NARROW_ROWS or observe is not None:
                logits_RV = self.logits_RV.new_empty(shape.num_logit_rows, self.spec.vocab_size)
                with on_device(logits_RV.device):
                    self.launch(shape, logits_RV, observe)
                return logits_RV
            self.graphs.run(shape, lambda: self.launch(shape, self.logits_RV))
            return self.logits_RV[: shape.num_logit_rows].clone()

    def launch(self, shape: PassShape, logits_RV: Tensor, observe: Observer | None = None) -> None:
        """All kernels of a pass over the rows of `rows`."""
        self.launch_layers(shape, observe)
        if shape.num_logit_rows:
            linear(
                self.buffers.h, self.head, logits_RV, num_rows=shape.num_rows,
                first_row=shape.num_rows - shape.num_logit_rows, fold=self.fold, workspace=self.buffers.workspace,
                overlaps=self.overlaps,
            )  # fmt: skip
            if observe is not None:
                observe(self._program[-1], logits_RV)

    def launch_layers(self, shape: PassShape, observe: Observer | None = None) -> None:
        """All kernels but the head's."""
        for op, launch in self._list_for(shape.skipped):
            launch(shape)
            if observe is not None:
                observe(op, getattr(self.buffers, op.writes)[: shape.num_rows])

    def _list_for(self, skipped: SkipSet) -> list[tuple[Op, Launch]]:
        if skipped not in self._lists:
            self._lists[skipped] = self._launches.build([op for op in self._program if op.sublayer not in skipped])
        return self._lists[skipped]

    def _read_parameters(self) -> Parameters:
        spec, program, keys = self.spec, self._program, self._cache.keys_LSKD
        table_VH = self._weights["embedding.weight"]
        turns_P2D = rope_table(
            spec.rope, spec.head_dim, self._cache.capacity, dtype=torch.float32, device=str(keys.device)
        )
        return Parameters(
            spec=spec,
            linears={op.writes + op.weights: self._pack(op) for op in program if op.kind in ("linear", "linear_add")},
            norms={op.weights: self._vector(op.weights) for op in program if op.kind == "norm"},
            head_norms={
                op.weights: (self._vector(op.weights + "q_norm"), self._vector(op.weights + "k_norm"))
                for op in program
                if op.kind == "rope_append" and spec.qk_norm
            },
            turns_P2D=turns_P2D.contiguous(),
            table_VH=table_VH,
            sublayers={name: number for number, name in enumerate(all_sublayers(spec.num_layers))},
        )

    def _pack(self, op: Op) -> PackedLinear:
        """Pack a weight and drop the plain copy, unless the embedding still looks rows up in it."""
        take = self._weights.__getitem__ if op.weights == "embedding" else self._weights.pop
        weight, bias = take(op.weights + ".weight"), self._weights.pop(op.weights + ".bias", None)
        return pack(
            quantise(weight, head_format(self._format) if op.sublayer is None else self._format),
            bias,
            compute=self._cache.keys_LSKD.dtype,
            paired=op.writes == "gate_up",
            head_dim=self.spec.head_dim if op.writes == "qkv" else None,
        )

    def _vector(self, name: str) -> Tensor:
        return self._weights.pop(name + ".weight").float().contiguous()


def can_overlap(device: torch.device) -> bool:
    """True where a kernel may be launched while the one before still runs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_DEVICE_WITH_OVERLAP


def shape_of(inputs: ForwardInput) -> PassShape:
    """What the launches of a pass depend on."""
    prefix_len = inputs.first_slot if inputs.ancestry is None else inputs.prefix_len
    return PassShape(
        num_rows=len(inputs.token_ids),
        num_splits=num_splits_for(prefix_len),
        num_logit_rows=inputs.num_logit_rows,
        skipped=inputs.skipped,
        is_gated=inputs.row_skips is not None,
    )


def num_splits_for(prefix_len: int) -> int:
    """At least the splits that lie wholly below `prefix_len`; a power of two, so that few graphs serve every length."""
    return 1 << (prefix_len // SPLIT - 1).bit_length() if prefix_len >= SPLIT else 0
