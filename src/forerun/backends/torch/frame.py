"""The named buffers of one run of the eager executor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forerun.core.model_spec import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPath:
    """The text of one row, as far as layers with a mixer read it.

    Args:
        place: the number of tokens that are summed up in the state which the row reads.
        slots: of the rings (`MixerRows`), with the rows after the place and those that a convolution reads, in the
            order of the text; the last is the row's own.
        num_after: how many of them, from the last, lie after the place; the row itself is one of them.
    """

    place: int
    slots: Tensor
    num_after: int


class Frame:
    """The named buffers of one run, and the positions of its rows in the cache."""

    ancestry: Tensor | None
    branch: Tensor
    convolved: Tensor
    end: int
    features: Tensor
    first_slot: int
    gate_up: Tensor
    gate_input: Tensor
    gated: Tensor
    h: Tensor
    layer_inputs: Tensor
    layer_projection: Tensor
    logits: Tensor
    mask: dict[tuple[int | None, int], Any]  # by window and group: the result of the kernels' prepare_mask
    mixed: Tensor
    mixer_in: Tensor
    output_gate: Tensor
    partial: Tensor
    paths: list[RowPath]  # of every row, for layers with a mixer
    num_logit_rows: int
    prefix_len: int
    q: Tensor
    qkv: Tensor
    query_scales: dict[int, Tensor | None]  # by head size
    rotations: dict[RopeSpec | None, tuple[Tensor, Tensor]]  # cosines and sines of the rows' positions
    router: Tensor
    row_skips: Tensor | None
    shared_gate: Tensor
    token_ids: Tensor
    x: Tensor


Step = Callable[[Frame], None]
