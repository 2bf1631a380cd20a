"""The device executor: a pass as five fused Triton kernels per layer, on a GPU recorded as one CUDA graph per shape.

The residual stream is float32; what matrix units read, and the cache, have the model's dtype. Every row is computed in
an order of its own, so its bits depend on no other row. What each kernel does is in `backends.gpu`.

Legend: R rows of a pass at most, V vocabulary, P positions, D head size.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.backends.bind import bind_weights
from forerun.backends.gpu.cuda_graphs import GraphPool
from forerun.backends.gpu.language import on_device
from forerun.backends.gpu.launches import NARROW_ROWS, Buffers, Launch, LaunchList, PassShape
from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.backends.gpu.row_table import RowTable, RowWriter
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import SkipSet
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.program import Op
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import Weight, WeightSource
from forerun.runtime.inference import inference

MAX_ROWS: Final = 256  # The most rows that one pass may have.
MAX_TREE_SLOTS: Final = 1 << 15
FIRST_DEVICE_WITH_OVERLAP: Final = (9, 0)  # Programmatic dependent launch came with Hopper.


class DeviceExecutor:
    """A program bound to weights and a cache.

    Args:
        group: the ranks that share the model, of which this one has the given part; None: it is whole.

    Args of a caller that works on the device itself: `rows` is the table that every pass reads, `logits_RV` where
    narrow passes leave their scores.
    """

    def __init__(
        self,
        spec: ModelSpec,
        program: tuple[Op, ...],
        weights: WeightSource,
        cache: TreeCache,
        group: PeerGroup | None = None,
    ) -> None:
        keys, size = cache.keys_LSKD, spec.hidden_size
        exchange = None if group is None else group.open_exchange(
            num_programs=num_tiles_of(size), place_bytes=MAX_ROWS * size * keys.element_size()
        )  # fmt: skip
        self.spec, self.graphs = spec, GraphPool(str(keys.device))
        self._program, self._cache, self._group = program, cache, group
        self.overlaps = can_overlap(keys.device)
        num_sublayers = 2 * spec.num_layers
        self.rows = RowTable(
            max_rows=MAX_ROWS, max_tree_slots=MAX_TREE_SLOTS, num_sublayers=num_sublayers, device=str(keys.device)
        )
        self._writer = RowWriter(self.rows)
        self.bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            rope_dtype=torch.float32,
            pack_linear=self._pack,
            pack_norm=lambda weight_H: weight_H.float().contiguous(),
        )
        self.buffers = Buffers(
            spec, self.bound, max_rows=MAX_ROWS, max_splits=-(-cache.capacity // SPLIT), dtype=keys.dtype
        )
        self._launches = LaunchList(
            spec, self.bound, self.buffers, self.rows, cache, exchange=exchange, overlaps=self.overlaps
        )
        self._lists: dict[SkipSet, list[tuple[Op, Launch]]] = {}
        self.head, self.head_norm = self._launches.head(program)
        self.logits_RV = torch.zeros(NARROW_ROWS, self.head.num_out, device=keys.device)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features are float32.

        `observe` sees the last op of every kernel, and the buffer it wrote.
        """
        if self._group is not None:
            self._group.require_all()
        with inference():
            self._writer.write(inputs)
            shape = shape_of(inputs)
            if shape.num_rows > NARROW_ROWS or observe is not None:
                logits_RV = self.logits_RV.new_empty(shape.num_logit_rows, self.head.num_out)
                with on_device(logits_RV.device):
                    self.launch(shape, logits_RV, observe)
            else:
                self.graphs.run(shape, lambda: self.launch(shape, self.logits_RV))
                logits_RV = self.logits_RV[: shape.num_logit_rows].clone()
            features = self.buffers.features(len(shape.taps))[: shape.num_rows].clone() if shape.taps else None
            return ForwardOutput(logits=logits_RV, features=features)

    def launch(self, shape: PassShape, logits_RV: Tensor, observe: Observer | None = None) -> None:
        """All kernels of a pass over the rows of `rows`."""
        self.launch_layers(shape, observe)
        if shape.num_logit_rows:
            linear(
                self.buffers.h, self.head, logits_RV, num_rows=shape.num_rows,
                first_row=shape.num_rows - shape.num_logit_rows, norm=self.head_norm, workspace=self.buffers.workspace,
                overlaps=self.overlaps,
            )  # fmt: skip
            if observe is not None:
                observe(self._program[-1], logits_RV)

    def launch_layers(self, shape: PassShape, observe: Observer | None = None) -> None:
        """All kernels but the head's."""
        for op, launch in self._list_for(shape.skipped):
            if not op.is_part_of(shape.skipped, shape.taps):
                continue
            launch(shape)
            if observe is not None and op.kind == "tap":
                features = self.buffers.features(len(shape.taps))
                observe(op, features[: shape.num_rows, : shape.taps.index(op.layer) + 1])
            elif observe is not None:
                observe(op, getattr(self.buffers, op.writes)[: shape.num_rows])

    def _list_for(self, skipped: SkipSet) -> list[tuple[Op, Launch]]:
        if skipped not in self._lists:
            self._lists[skipped] = self._launches.build([op for op in self._program if op.sublayer not in skipped])
        return self._lists[skipped]

    def _pack(self, op: Op, weight: Weight, bias_O: Tensor | None) -> DeviceLinear:
        head_dim = self.spec.head_dim if op.writes == "qkv" else None
        compute = self._cache.keys_LSKD.dtype
        return pack(weight, bias_O, compute=compute, paired=op.writes == "gate_up", head_dim=head_dim)


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
        has_row_skips=inputs.row_skips is not None,
        taps=inputs.taps,
    )


def num_splits_for(prefix_len: int) -> int:
    """At least the splits that lie wholly below `prefix_len`; a power of two, so that few graphs serve every length."""
    return 1 << (prefix_len // SPLIT - 1).bit_length() if prefix_len >= SPLIT else 0
