"""What rows leave for later rows in layers without attention (`core.mixers`): in slots, and in states at fixed places.

Legend: L layers with a mixer, S slots of a ring, N states of a ring, C channels of a convolution, R values that a row
leaves beside them, H value heads, K key size, V value size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.mixers import ShortConvolution, ring_slots, ring_states
from forerun.core.model_spec import ModelSpec
from forerun.core.threads import inference
from forerun.model.sliding_slots import zeros

Advance = Callable[[Tensor, Tensor], Tensor]  # a state [H, K, V], and the rows after it [stride, R], to the next


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """All that these layers need to continue a text of `length` tokens, copied.

    Args:
        place: of the states, the first token that they do not sum up.
        inputs_LNC: the inputs of convolutions of the last rows.
        rows_LNR: of the rows from the place on.
        states_LHKV: empty if there are none.
    """

    length: int
    place: int
    inputs_LNC: Tensor
    rows_LNR: Tensor
    states_LHKV: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self.inputs_LNC, self.rows_LNR, self.states_LHKV))


class MixerRows:
    """The slots and states of all layers with a mixer, in rings: their size does not depend on the text's length.

    The slots are those of the `TreeCache` that owns this: a row of its slot s lies at s modulo `num_slots` here, until
    a row `num_slots` after it is written. A state at a place sums up the rows of the text before it. It is computed
    when a row first reads it. That of place p lies at p / stride modulo `num_states`, until a later one takes its
    place; that of place 0 is all zeros and lies nowhere. So behind a prompt's pass a text can be continued, or a
    snapshot taken, at any length from the beginning of the pass on.

    Invariant: between passes a state depends only on committed rows before its place.

    Attributes:
        held_L2: the first and the last place with a state in each layer, a stride apart; 0 and 0: no place.
    """

    def __init__(self, spec: ModelSpec, capacity: int, *, dtype: torch.dtype, device: str, num_rows: int = 0) -> None:
        """`num_rows` is the most rows of a tree."""
        assert spec.mixer is not None, "a model whose layers all have attention has no such rows"
        mixer = spec.mixer
        self._mixer = mixer
        self._numbers = {layer: number for number, layer in enumerate(spec.mixer_layers)}
        num_layers = len(spec.mixer_layers)
        self.num_slots = ring_slots(mixer, capacity, num_rows)
        self.num_states = ring_states(mixer)
        wide = torch.promote_types(dtype, torch.float32)
        self._inputs_LSC, _ = zeros((num_layers, self.num_slots, mixer.num_channels), dtype=wide, device=device)
        row_size = mixer.row_size - mixer.num_channels
        self._rows_LSR, _ = zeros((num_layers, self.num_slots, row_size), dtype=wide, device=device)
        heads = (
            (0, 0, 0)
            if isinstance(mixer, ShortConvolution)
            else (mixer.num_value_heads, mixer.key_dim, mixer.value_dim)
        )
        self.states_LNHKV, _ = zeros((num_layers, self.num_states, *heads), dtype=wide, device=device)
        self._first_HKV = torch.zeros(heads, dtype=wide, device=device)
        self.held_L2 = torch.zeros((num_layers, 2), dtype=torch.int64)
        self._inputs_from = 0  # the first slot that still has its inputs of a convolution
        self._rows_from = 0  # and the rest

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """The rings of a layer: the inputs of its convolution [S, C], and the rest [S, R]."""
        number = self._numbers[layer]
        return self._inputs_LSC[number], self._rows_LSR[number]

    def states(self, layer: int) -> tuple[Tensor, Tensor]:
        """The ring of a layer's states [N, H, K, V], and the first and the last place with one."""
        number = self._numbers[layer]
        return self.states_LNHKV[number], self.held_L2[number]

    def state(self, layer: int, place: int, advance: Advance) -> Tensor:
        """The state [H, K, V] of a layer at a place. It advances to there by the stride of places at once."""
        if place == 0:
            return self._first_HKV
        number = self._numbers[layer]
        states_NHKV = self.states_LNHKV[number]
        stride = self._mixer.stride
        first, last = self.held_L2[number].tolist()
        if place < first:
            first = last = 0  # the text has been cut back further than the states
        assert last or self._rows_from == 0, (
            f"layer {layer} has no state, and the first {self._rows_from} rows are lost"
        )
        for before in range(min(last, place), place, stride):
            state_HKV = states_NHKV[self._state_at(before)] if before else self._first_HKV
            at = before % self.num_slots
            last = before + stride
            states_NHKV[self._state_at(last)] = advance(state_HKV, self._rows_LSR[number, at : at + stride])
        self.held_L2[number] = torch.tensor((max(first or stride, last - (self.num_states - 1) * stride), last))
        return states_NHKV[self._state_at(place)]

    def _state_at(self, place: int) -> int:
        """Where the state of a place lies in its ring."""
        return place // self._mixer.stride % self.num_states

    def reserve(self, end: int, length: int) -> None:
        """Slots up to `end` will be written, behind a text of `length` tokens."""
        lost = end - self.num_slots
        oldest = self._mixer.place(length) - self._mixer.stride if self._mixer.state_size else length
        assert lost <= max(0, min(oldest, self._first_input(length))), (
            f"{end - length} rows behind {length} tokens do not fit into {self.num_slots} slots"
        )
        self._inputs_from = max(self._inputs_from, lost)
        self._rows_from = max(self._rows_from, lost)

    def _first_input(self, length: int) -> int:
        """The first slot whose inputs the convolution of a row behind so many tokens reads."""
        return max(0, length - self._mixer.kernel_size + 1)

    def is_resumable(self, length: int) -> bool:
        """Whether the text can be cut to this length and continued."""
        has_rows = not self._mixer.state_size or self._rows_from <= min(self._latest(self._mixer.place(length)))
        return has_rows and self._inputs_from <= self._first_input(length)

    def _latest(self, place: int) -> list[int]:
        """The last place, up to this one, at which each layer has a state."""
        return [min(last, place) if first <= place else 0 for first, last in self.held_L2.tolist()]

    def snapshot(self, length: int) -> Snapshot | None:
        """A copy of what continues the committed text cut to this length; None if it cannot be resumed there."""
        if not self.is_resumable(length):
            return None
        place = min(self._latest(self._mixer.place(length))) if self._mixer.state_size else length
        has_state = place > 0 and self._mixer.state_size > 0
        if has_state and any(latest != place for latest in self._latest(place)):
            return None
        with inference():
            return Snapshot(
                length=length,
                place=place,
                inputs_LNC=self._inputs_LSC[:, self.ring(self._first_input(length), length)],
                rows_LNR=self._rows_LSR[:, self.ring(place, length)],
                states_LHKV=self.states_LNHKV[:, self._state_at(place)].clone() if has_state else self._first_HKV[:0],
            )

    def ring(self, start: int, end: int) -> Tensor:
        """Where the slots of a text from `start` to `end` lie."""
        return torch.arange(start, end, device=self._rows_LSR.device) % self.num_slots

    def restore(self, snapshot: Snapshot) -> None:
        """Write a snapshot's rows to the slots of its text; the caller commits them."""
        length = snapshot.length
        place = snapshot.place
        first = length - snapshot.inputs_LNC.shape[1]
        with inference():
            self._inputs_LSC[:, self.ring(first, length)] = snapshot.inputs_LNC
            self._rows_LSR[:, self.ring(place, length)] = snapshot.rows_LNR
            if len(snapshot.states_LHKV):
                self.states_LNHKV[:, self._state_at(place)] = snapshot.states_LHKV
        self.held_L2[:] = place if len(snapshot.states_LHKV) else 0
        self._inputs_from = first
        self._rows_from = place

    def move(self, length: int, sources: Sequence[int], start: int) -> None:
        """Copy rows `sources` to the slots from `start` on, and drop the states that a text of `length` tokens does not
        have."""
        self.held_L2[:, 1].clamp_(max=length // self._mixer.stride * self._mixer.stride)
        self.held_L2[self.held_L2[:, 0] > self.held_L2[:, 1]] = 0
        if sources:
            target = self.ring(start, start + len(sources))
            read = torch.tensor(sources, device=target.device) % self.num_slots
            for ring_LSX in (self._inputs_LSC, self._rows_LSR):
                ring_LSX[:, target] = ring_LSX[:, read]

    def stand_in(self, length: int) -> None:
        """Treat what is there as what a text of this length has left."""
        self.reserve(length, length)
        self.held_L2[:] = self._mixer.place(length) if self._mixer.state_size else 0

    def clear(self) -> None:
        """No text is left: all slots can be written again."""
        self.held_L2.zero_()
        self._inputs_from = 0
        self._rows_from = 0
