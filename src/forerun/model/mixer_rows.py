"""What rows leave for later rows in layers without attention (`core.mixers`): in slots, and in states at fixed places.

Legend: L layers with a mixer, S slots, C channels of a convolution, R values that a row leaves beside them, H value
heads, K key size, V value size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from forerun.core.mixers import ShortConvolution
from forerun.core.model_spec import WINDOW_STEP, ModelSpec
from forerun.core.threads import inference
from forerun.model.sliding_slots import SlidingSlots, zeros

INPUTS_MARGIN: Final = 256  # slots before the convolution's that are kept

Advance = Callable[[Tensor, Tensor], Tensor]  # a state [H, K, V], and the rows after it [stride, R], to the next


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """All that these layers need to continue a text of `length` tokens, copied.

    Args:
        place: of the states, the first token that they do not sum up.
        inputs_LNC: the inputs of convolutions of the last rows.
        rows_LNR: of the rows from the place on.
        states_LHKV: empty if the place is 0.
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
    """The slots and states of all layers with a mixer.

    The slots are those of the `TreeCache` that owns this: a row has the same number here. A state at a place sums up
    the rows of the text before it. It is computed when a row first reads it, and kept as long as a row from a stride
    before the end of the text on can read it. On a CPU the memory of rows that no row reads any more is returned, see
    `SlidingSlots`.

    Invariant: between passes a state depends only on committed rows before its place.
    """

    def __init__(self, spec: ModelSpec, capacity: int, *, dtype: torch.dtype, device: str) -> None:
        assert spec.mixer is not None, "a model whose layers all have attention has no such rows"
        mixer = spec.mixer
        self._numbers = {layer: number for number, layer in enumerate(spec.mixer_layers)}
        num_layers = len(spec.mixer_layers)
        wide = torch.promote_types(dtype, torch.float32)
        self._mixer = mixer
        self._inputs_1LSC, pages = zeros((1, num_layers, capacity, mixer.num_channels), dtype=wide, device=device)
        self._inputs = SlidingSlots(
            self._inputs_1LSC, pages, layers=range(num_layers), margin=INPUTS_MARGIN, step=WINDOW_STEP,
            first_read=lambda position: position - mixer.kernel_size + 1,
        )  # fmt: skip
        row_size = mixer.row_size - mixer.num_channels
        self._rows_1LSR, pages = zeros((1, num_layers, capacity, row_size), dtype=wide, device=device)
        self._rows = SlidingSlots(
            self._rows_1LSR, pages, layers=range(num_layers), margin=mixer.stride,
            step=mixer.stride, first_read=mixer.place,
        )  # fmt: skip
        self._states: list[dict[int, Tensor]] = [{} for _ in range(num_layers)]  # by place
        shape = (
            (0, 0, 0)
            if isinstance(mixer, ShortConvolution)
            else (mixer.num_value_heads, mixer.key_dim, mixer.value_dim)
        )
        self._first_HKV = torch.zeros(shape, dtype=wide, device=device)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """The slots of a layer: the inputs of its convolution [S, C], and the rest [S, R]."""
        number = self._numbers[layer]
        return self._inputs_1LSC[0, number], self._rows_1LSR[0, number]

    def state(self, layer: int, place: int, advance: Advance) -> Tensor:
        """The state [H, K, V] of a layer at a place. It advances to there by the stride of places at once."""
        if place == 0:
            return self._first_HKV
        number = self._numbers[layer]
        states = self._states[number]
        start = max((other for other in states if other <= place), default=0)
        stride = self._mixer.stride
        for first in range(start, place, stride):
            rows_TR = self._rows_1LSR[0, number, first : first + stride]
            states[first + stride] = advance(states.get(first, self._first_HKV), rows_TR)
        return states[place]

    def is_resumable(self, length: int) -> bool:
        """Whether the text can be cut to this length and continued."""
        if not self._inputs.is_whole(length, self._inputs.whole_from):
            return False
        place = self._mixer.place(length)
        latest = [max((other for other in states if other <= place), default=0) for states in self._states]
        return not self._mixer.state_size or self._rows.whole_from <= min(latest)

    def snapshot(self, length: int) -> Snapshot | None:
        """A copy of what continues the committed text cut to this length; None if it cannot be resumed there."""
        if not self.is_resumable(length):
            return None
        latest = self._mixer.place(length)
        place = min(max((other for other in states if other <= latest), default=0) for states in self._states)
        if not self._mixer.state_size:
            place = length
        held = [states.get(place, self._first_HKV) for states in self._states]
        if place and self._mixer.state_size and not all(place in states for states in self._states):
            return None
        first = max(0, length - self._mixer.kernel_size + 1)
        with inference():
            return Snapshot(
                length=length,
                place=place,
                inputs_LNC=self._inputs_1LSC[0, :, first:length].clone(),
                rows_LNR=self._rows_1LSR[0, :, place:length].clone(),
                states_LHKV=torch.stack(held),
            )

    def restore(self, snapshot: Snapshot) -> None:
        """Write a snapshot's rows to the slots of its text; the caller commits them."""
        first = snapshot.length - snapshot.inputs_LNC.shape[1]
        with inference():
            self._inputs_1LSC[0, :, first : snapshot.length] = snapshot.inputs_LNC
            self._rows_1LSR[0, :, snapshot.place : snapshot.length] = snapshot.rows_LNR
        self._inputs.begin_at(first)
        self._rows.begin_at(snapshot.place)
        states = snapshot.states_LHKV.unbind(0)
        self._states = [{snapshot.place: state.clone()} if snapshot.place else {} for state in states]

    def move(self, length: int, sources: Sequence[int], start: int) -> None:
        """Copy rows `sources` to the slots from `start` on, and drop the states that a text of `length` tokens does not
        have, and those that no row from a stride before its end on reads."""
        oldest = self._mixer.place(length) - self._mixer.stride
        for states in self._states:
            for place in [other for other in states if not oldest <= other <= length]:
                del states[place]
        if sources:
            for storage_1LSX in (self._inputs_1LSC, self._rows_1LSR):
                storage_1LSX[:, :, start : start + len(sources)] = storage_1LSX[:, :, list(sources)]

    def pass_by(self, length: int) -> None:
        """Return the memory of rows that a text of this length no longer needs."""
        self._inputs.pass_by(length)
        self._rows.pass_by(length)

    def clear(self) -> None:
        """No text is left: all slots can be written again."""
        self._inputs.clear()
        self._rows.clear()
