"""Keys and values of the committed text and of the draft tree.

Legend: L layers with attention, S slots, K key/value heads, D head size; of a cache in 8 bits D + 4, as the scale lies
in the row (`cache_rows`). Keys are stored after the rotary embedding: a row keeps its position when it moves to another
slot.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.model_spec import WINDOW_MARGIN, WINDOW_STEP, CacheFormat, ModelSpec
from forerun.core.threads import inference
from forerun.model.cache_rows import decode_rows, encode_rows, scales_of
from forerun.model.executor import CacheMove, Tell
from forerun.model.mixer_rows import MixerRows
from forerun.model.sliding_slots import SlidingSlots, zeros

MoveSlots: TypeAlias = Callable[[Tensor, Sequence[int], int], None]  # see ModelBackend.move_slots


class TreeCache:
    """The committed text in order, followed by tree rows that a move keeps or drops.

    Slots [0, committed_len) hold the committed text; the next num_tree slots hold tree rows, numbered from 0 at slot
    committed_len. A forward pass writes rows to the slots it is given; only the runner reserves and moves slots.
    Source: SwiftSpec, arXiv 2506.11309, "evolving tree cache".

    On a CPU, layers with a window keep only the end of a long text (`SlidingSlots`), and layers with a state only the
    last rows and states (`MixerRows`). So a text can be cut back only a little, or to nothing: `resumable` returns how
    much of it can be kept.

    Args:
        dtype: that the model computes in, and in which `read` returns rows.
        format: of the stored keys and values.
        num_rows: the most rows of a tree, for layers with a state; a prompt's pass has room in any case.
        tell: called for every change of this cache, in order: moves, passes, texts saved and restored. A process that
            repeats them gets the same cache. By default no other process shares it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: str,
        format: CacheFormat = "model",
        num_rows: int = 0,
        move_slots: MoveSlots | None = None,
        tell: Tell = nullcontext,
    ) -> None:
        sizes = {(one.num_kv_heads, one.head_dim) for one in map(spec.of_layer, range(spec.num_layers))}
        has_equal_heads = len(sizes) == 1
        heads = (spec.num_kv_heads, spec.kv_row_size(format)) if has_equal_heads else (1, spec.most_kv_size(format))
        layers = spec.attention_layers
        self._numbers = {layer: number for number, layer in enumerate(layers)}
        own = {layer: spec.of_layer(layer) for layer in layers}
        self._heads = {layer: (one.num_kv_heads, one.kv_row_size(format)) for layer, one in own.items()}
        self.dtype = dtype
        self.device = device
        self.format: CacheFormat = format
        stored = torch.int8 if format == "int8" else dtype
        self.storage_2LSKD, pages = zeros((2, len(layers), capacity, *heads), dtype=stored, device=device)
        reach = (spec.window or 1) - 1  # slots before its own that a row reads in a layer with a window
        self.sliding = SlidingSlots(
            self.storage_2LSKD, pages, margin=WINDOW_MARGIN, step=WINDOW_STEP,
            layers=[number for layer, number in self._numbers.items() if spec.window_of(layer) is not None],
            first_read=lambda position: position - reach,
        )  # fmt: skip
        self.mixer_rows = (
            None if spec.mixer is None else MixerRows(spec, capacity, num_rows=num_rows, dtype=dtype, device=device)
        )
        self.keys_LSKD = self.storage_2LSKD[0]
        self.values_LSKD = self.storage_2LSKD[1]
        self.capacity = capacity
        self.committed_len = 0
        self.num_tree = 0
        self._move_slots = move_slots or move_slots_by_index
        self.tell = tell

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and the values of a layer as they are stored, [S, K, D] with its own heads."""
        num_heads, row_size = self._heads[layer]
        number = self._numbers[layer]
        kinds = (self.keys_LSKD[number], self.values_LSKD[number])
        if kinds[0].shape[1:] == (num_heads, row_size):
            return kinds
        keys, values = (kind[:, 0, : num_heads * row_size].view(-1, num_heads, row_size) for kind in kinds)
        return keys, values

    def read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """The keys and the values of a layer's slots before `end`, [end, K, D] in `dtype`."""
        keys, values = (kind[:end] for kind in self.layer(layer))
        if self.format == "model":
            return keys, values
        return decode_rows(keys, self.dtype), decode_rows(values, self.dtype)

    def write(self, layer: int, first: int, keys_TKD: Tensor, values_TKD: Tensor) -> None:
        """Store the keys and the values of rows in a layer's slots from `first` on."""
        for kind, rows_TKD in zip(self.layer(layer), (keys_TKD, values_TKD), strict=True):
            kind[first : first + len(rows_TKD)] = rows_TKD if self.format == "model" else encode_rows(rows_TKD)

    def is_finite(self, first: int, end: int, numbers: Sequence[int]) -> bool:
        """Whether the rows of these slots hold no NaN and no infinity, in layers by their number in the storage."""
        kinds = (
            kind[first:end]
            for layer, number in self._numbers.items()
            if number in numbers
            for kind in self.layer(layer)
        )
        return all(bool((kind if self.format == "model" else scales_of(kind)).isfinite().all()) for kind in kinds)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of the keys and values of one token."""
        return self.storage_2LSKD[:, :, 0].numel() * self.storage_2LSKD.element_size()

    @property
    def end(self) -> int:
        """The first free slot."""
        return self.committed_len + self.num_tree

    def resumable(self, length: int) -> int:
        """How much of the text can be kept, if at most `length` tokens are wanted: `length` tokens, or none."""
        is_whole = self.sliding.is_whole(length, self.sliding.whole_from)
        return length if is_whole and (self.mixer_rows is None or self.mixer_rows.is_resumable(length)) else 0

    def reserve(self, num_rows: int) -> int:
        """Reserve slots for tree rows; return the first slot."""
        first = self.end
        assert first + num_rows <= self.capacity, f"{num_rows} rows after slot {first} exceed the {self.capacity} slots"
        self.num_tree += num_rows
        if self.mixer_rows is not None:
            self.mixer_rows.reserve(self.end, self.committed_len)
        return first

    def move(self, move: CacheMove) -> None:
        """Keep the tokens and rows that the move names, and drop all others."""
        rows = move.rows
        start = self.committed_len
        assert 0 <= move.length <= start, f"length {move.length} of {start} committed"
        assert move.length in (start, self.resumable(move.length)), f"the windows before token {move.length} are lost"
        assert not rows or (move.length == start and 0 <= min(rows) <= max(rows) < self.num_tree), (
            f"rows {rows} after {move.length} tokens, of a tree of {self.num_tree} after {start}"
        )
        assert len(set(rows)) == len(rows), f"rows {rows} name one twice"
        num_committed = move.num_committed + move.num_adopted
        assert not (rows and move.num_adopted), f"{move.num_adopted} rows are adopted together with {rows}"
        assert move.length + num_committed <= self.capacity, f"{num_committed} tokens after {move.length}"
        with self.tell(move):
            self.committed_len = move.length + num_committed
            self.num_tree = len(rows) - move.num_committed
            is_empty = not (move.length or rows or move.num_adopted)
            num_in_place = next((place for place, row in enumerate(rows) if row != place), len(rows))
            sources = [start + row for row in rows[num_in_place:]]
            self.sliding.clear() if is_empty else self.sliding.pass_by(move.length)
            if sources:
                self._move_slots(self.storage_2LSKD, sources, start + num_in_place)
            if self.mixer_rows is not None:
                self.mixer_rows.move(self.committed_len, sources, start + num_in_place)
                if is_empty:
                    self.mixer_rows.clear()

    def truncate(self, length: int) -> None:
        """Drop the tree and all committed tokens from `length` on."""
        self.move(CacheMove(length=length))


def move_slots_by_index(storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
    """As `ModelBackend.move_slots`, with torch's calls."""
    with inference():
        slots = torch.tensor(sources, device=storage_2LSKD.device)
        storage_2LSKD[:, :, start : start + len(sources)] = storage_2LSKD.index_select(2, slots)
