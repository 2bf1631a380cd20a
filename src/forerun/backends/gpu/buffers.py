"""The buffers of a pass on the device; their addresses never change, as recorded passes use them.

Legend: R the largest number of rows of a pass, H hidden size.
"""

from typing import Final, TypeAlias

import torch
from torch import Tensor

from forerun.backends.bind import FINAL_NORM, BoundWeights
from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.attention import AttentionWorkspace
from forerun.backends.gpu.passes.linear_buffers import SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.core.model_spec import ModelSpec

NARROW_ROWS: Final = 32  # Up to this many rows, a pass reads weights once and splits attention over the text.

DeviceWeights: TypeAlias = BoundWeights[DeviceLinear, Tensor]


class Buffers:
    """The buffers of a pass. `x` is the residual stream; `h`, `q`, `mixed` and `gated` have the compute dtype.

    `branch` is a sublayer's output before its norm, and `qkv` the products before a norm over all heads, both float32;
    a model without such norms has none.
    """

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, *, max_rows: int, max_splits: int, dtype: torch.dtype
    ) -> None:
        device, linears = bound.norms[FINAL_NORM].device, list(bound.linears.values())
        most_tiles = max(num_tiles_of(spec.hidden_size), *(packed.num_tiles for packed in linears))

        def empty(width: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(max_rows, width, dtype=kind, device=device)

        self.x, self.h = empty(spec.hidden_size, torch.float32), empty(spec.hidden_size)
        self.q, self.mixed, self.gated = empty(spec.q_size), empty(spec.q_size), empty(spec.intermediate_size)
        self.branch = empty(0 if spec.norms == "before" else spec.hidden_size, torch.float32)
        self.qkv = empty((spec.q_size + 2 * spec.kv_size) * spec.qk_norm_whole, torch.float32)
        self._features: dict[int, Tensor] = {}
        self.squares = torch.zeros(most_tiles, max_rows, device=device)
        self.workspace = SplitWorkspace.for_linears(linears, max_rows=max_rows, device=str(device))
        self.attention = AttentionWorkspace.for_heads(
            max_rows=NARROW_ROWS, num_heads=spec.num_heads, head_dim=spec.head_dim, max_splits=max_splits,
            device=str(device),
        )  # fmt: skip

    def features(self, num_taps: int) -> Tensor:
        """Buffer of the taps' copies, [R, num_taps, H]."""
        if num_taps not in self._features:
            max_rows, size = self.x.shape
            self._features[num_taps] = self.x.new_zeros(max_rows, num_taps, size)
        return self._features[num_taps]
