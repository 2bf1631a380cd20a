"""The device executor: a pass as five fused Triton kernels per layer, on a GPU recorded as one CUDA graph per shape.

To keep the number of shapes small, a recorded pass has spare rows at the end, and attention programs for a longer text
than there is. The first pass of a kind records all shapes of that kind; this happens during the engine's warm-up.

The residual stream is float32; inputs of matrix units and the cache have the model's dtype. The order of operations
for a row does not depend on other rows, so neither do its bits.

Legend: R the largest number of rows of a pass, V vocabulary, P positions, D head size.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.bind import bind_weights
from forerun.backends.gpu.buffers import NARROW_ROWS, Buffers
from forerun.backends.gpu.cuda_graphs import GraphPool
from forerun.backends.gpu.kernel_parts import on_device
from forerun.backends.gpu.launches import LaunchList
from forerun.backends.gpu.pass_shape import Launch, PassShape
from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack, stack
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.backends.gpu.row_table import RowTable, RowWriter
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import SkipSet
from forerun.core.threads import inference
from forerun.model.executor import ForwardInput, ForwardOutput, ModelExecutor, Observer
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import DenseWeight, Table, Weight, WeightSource

MAX_ROWS: Final = 256  # The most rows that one pass may have.
MAX_TREE_SLOTS: Final = 1 << 15
RECORDED_ROWS: Final = (1, 8, 16, NARROW_ROWS, *range(2 * NARROW_ROWS, MAX_ROWS + 1, NARROW_ROWS))
LEAST_SPLITS: Final = 2
FIRST_DEVICE_WITH_OVERLAP: Final = (9, 0)  # Programmatic dependent launch came with Hopper.


class DeviceExecutor(ModelExecutor):
    """A program bound to weights and a cache.

    Args:
        group: the ranks that share the model, if this one has a part of it; None if the model is whole.

    For callers that work on the device: `rows` is the table that every pass reads, and narrow passes write their scores
    to `logits_RV`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        program: tuple[Op, ...],
        weights: WeightSource,
        cache: TreeCache,
        group: PeerGroup | None = None,
    ) -> None:
        keys = cache.keys_LSKD
        size = spec.hidden_size
        exchange = None if group is None else group.open_exchange(
            num_programs=num_tiles_of(size), place_bytes=MAX_ROWS * size * keys.element_size()
        )  # fmt: skip
        self.spec = spec
        self.graphs = GraphPool(str(keys.device))
        self._program = program
        self._cache = cache
        self._group = group
        self.overlaps = can_overlap(keys.device)
        num_sublayers = 2 * spec.num_layers
        self.rows = RowTable(
            max_rows=MAX_ROWS, max_tree_slots=MAX_TREE_SLOTS, num_sublayers=num_sublayers, device=str(keys.device)
        )
        self._writer = RowWriter(self.rows)
        bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            pack_linear=self._pack,
            pack_norm=lambda weight_H: weight_H.float().contiguous(),
            join_experts=lambda experts: [(stack([one[0] for one in experts]), stack([one[1] for one in experts]))],
        )
        self.bound = replace(
            bound,
            table=plain_table(spec, bound.table, bound.linears[program[-1].weights]),
            layer_table=None if bound.layer_table is None else DenseWeight(values_OI=as_plain(bound.layer_table)),
        )
        self.buffers = Buffers(
            spec, self.bound, max_rows=MAX_ROWS, max_splits=-(-cache.capacity // SPLIT), dtype=keys.dtype
        )
        self._launches = LaunchList(
            spec, self.bound, self.buffers, self.rows, cache, exchange=exchange, overlaps=self.overlaps
        )
        self._lists: dict[SkipSet, list[tuple[Op, Launch]]] = {}
        self._recorded: set[PassShape] = set()  # One shape of every kind that is recorded.
        self.head, self.head_norm = self._launches.head(program)
        self.logits_RV = torch.zeros(NARROW_ROWS, self.head.num_out, device=keys.device)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features are float32.

        `observe` is called with the last op of every kernel and the rows that it wrote, spare ones left out.
        """
        if self._group is not None:
            self._group.require_all()
        with inference():
            shape = self.aim(inputs)
            num_rows = len(inputs.token_ids)
            end = num_rows - (shape.num_rows - shape.num_logit_rows)  # Spare rows come last.
            logit_rows = slice(end - inputs.num_logit_rows, end)
            if observe is not None or not can_record(shape):
                logits_RV = self.logits_RV.new_empty(shape.num_logit_rows, self.head.num_out)

                def show(op: Op, buffer: Tensor) -> None:
                    assert observe is not None
                    observe(op, buffer[logit_rows if buffer is logits_RV else slice(num_rows)])

                with on_device(logits_RV.device):
                    self.launch(shape, logits_RV, None if observe is None else show)
            else:
                self.graphs.run(shape, lambda: self.launch(shape, self.logits_RV))
                logits_RV = self.logits_RV
            logits_RV = logits_RV[logit_rows].clone()
            features = self.buffers.features(len(shape.taps))[:num_rows].clone() if shape.taps else None
            return ForwardOutput(logits=logits_RV, features=features)

    def aim(self, inputs: ForwardInput) -> PassShape:
        """Write the row table of a pass, and return the pass's shape."""
        shape = shape_of(inputs)
        spare_slot = self._cache.capacity - 1
        if not self.graphs.records or inputs.num_slots > spare_slot:  # Padding is useless, or there is no spare slot.
            self._writer.write(inputs)
            return shape
        padded = padded_shape(shape)
        if not shape.skipped:  # Skip sets change often, so passes with one are recorded only at their second run.
            self._record_kind(padded, spare_slot)
        self._writer.write(inputs, num_padded=padded.num_rows, spare_slot=spare_slot)
        return padded

    def _record_kind(self, shape: PassShape, spare_slot: int) -> None:
        """Record every shape that differs from this one only in its rows and splits."""
        kind = replace(shape, num_rows=0, num_splits=0, num_logit_rows=min(shape.num_logit_rows, 1))
        if kind in self._recorded:
            return
        self._writer.write_spare(MAX_ROWS, spare_slot=spare_slot)
        for each in shapes_of(kind, max_length=self._cache.capacity):
            work = partial(self.launch, each, self.logits_RV)
            is_first = each.num_splits <= LEAST_SPLITS
            self.graphs.prepare(each, work, compiling=work if is_first else partial(self.launch_attention, each))
        self._recorded.add(kind)

    def launch(self, shape: PassShape, logits_RV: Tensor, observe: Observer | None = None) -> None:
        """Launch all kernels of a pass over the rows of `rows`."""
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
        """Launch all kernels except the head's."""
        for op, launch in self._list_for(shape.skipped):
            if not op.is_part_of(shape.skipped, shape.taps):
                continue
            launch(shape)
            if observe is not None and op.kind == "tap":
                features = self.buffers.features(len(shape.taps))
                observe(op, features[: shape.num_rows, : shape.taps.index(op.layer) + 1])
            elif observe is not None:
                observe(op, self.buffers.of_layer(op.writes, op.layer)[: shape.num_rows])

    def launch_attention(self, shape: PassShape) -> None:
        """Launch attention for one layer of each kind, the only kernel that depends on the number of splits."""
        attention = [(op, launch) for op, launch in self._list_for(shape.skipped) if op.kind == "tree_attention"]
        for launch in {self._launches.heads.kind_of(op.layer): launch for op, launch in attention}.values():
            launch(shape)

    def _list_for(self, skipped: SkipSet) -> list[tuple[Op, Launch]]:
        if skipped not in self._lists:
            self._lists[skipped] = self._launches.build([op for op in self._program if op.sublayer not in skipped])
        return self._lists[skipped]

    def embed(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, as_plain(self.bound.table))

    def output(self) -> Callable[[Tensor], Tensor] | None:
        head = self.head
        if head.weight_format != "plain" or self._group is not None:
            return None
        return lambda rows: functional.linear(rows.to(head.compute), head.weight.matrix).to(rows.dtype)

    def _pack(self, op: Op, weight: Weight, bias_O: Tensor | None) -> DeviceLinear:
        head_dim = self.spec.of_layer(op.layer).head_dim if op.writes == "qkv" else None
        compute = self._cache.keys_LSKD.dtype
        return pack(weight, bias_O, compute=compute, paired=op.writes == "gate_up", head_dim=head_dim)


def plain_table(spec: ModelSpec, table: Table, head: DeviceLinear) -> DenseWeight:
    """The embedding table unquantised, as its kernel reads it. If it is tied to a plain head, it shares its memory."""
    if isinstance(table, DenseWeight):
        return table
    is_head = spec.tied_embeddings and head.weight_format == "plain" and table.shape == (head.num_out, head.num_in)
    return DenseWeight(values_OI=head.weight.matrix if is_head else as_plain(table))


def can_overlap(device: torch.device) -> bool:
    """True if a kernel may be launched while the previous one still runs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_DEVICE_WITH_OVERLAP


def shape_of(inputs: ForwardInput) -> PassShape:
    """The shape of a pass, on which its launches depend."""
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
    """The number of splits entirely below `prefix_len`, rounded up to a power of two to need few graphs."""
    return max(LEAST_SPLITS, 1 << (prefix_len // SPLIT - 1).bit_length() if prefix_len >= SPLIT else 0)


def all_num_splits(max_length: int) -> list[int]:
    """All values of `num_splits_for` for prefixes up to this length."""
    return [1 << power for power in range(1, num_splits_for(max_length).bit_length())]


def can_record(shape: PassShape) -> bool:
    """True if the logits, if any, have a permanent buffer."""
    return not shape.num_logit_rows or shape.num_rows <= NARROW_ROWS


def padded_shape(shape: PassShape) -> PassShape:
    """The recorded shape to use for this one: with spare rows, logits of all rows or none, and splits only if the pass
    is narrow."""
    if not can_record(shape):
        return shape
    num_rows = next(num for num in RECORDED_ROWS if num >= shape.num_rows)
    return replace(
        shape, num_rows=num_rows, num_logit_rows=num_rows if shape.num_logit_rows else 0,
        num_splits=shape.num_splits if num_rows <= NARROW_ROWS else 0,
    )  # fmt: skip


def shapes_of(kind: PassShape, *, max_length: int) -> list[PassShape]:
    """All values of `padded_shape` for a kind of passes."""
    narrow = [num_rows for num_rows in RECORDED_ROWS if num_rows <= NARROW_ROWS]
    shapes = [(num_rows, splits) for splits in all_num_splits(max_length) for num_rows in narrow]
    if not kind.num_logit_rows:
        shapes += [(num_rows, 0) for num_rows in RECORDED_ROWS if num_rows > NARROW_ROWS]
    return [
        replace(kind, num_rows=num_rows, num_splits=splits, num_logit_rows=num_rows if kind.num_logit_rows else 0)
        for num_rows, splits in shapes
    ]
