"""The named buffers of one run of the eager executor."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from forerun.core.model_spec import RopeSpec


class Frame:
    """The named buffers of one run, and the positions of its rows in the cache."""

    ancestry: Tensor | None
    branch: Tensor
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
    partial: Tensor
    num_logit_rows: int
    prefix_len: int
    q: Tensor
    qkv: Tensor
    query_scales: dict[int, Tensor | None]  # by head size
    rotations: dict[RopeSpec | None, tuple[Tensor, Tensor]]  # cosines and sines of the rows' positions
    router: Tensor
    row_skips: Tensor | None
    token_ids: Tensor
    x: Tensor


Step = Callable[[Frame], None]
