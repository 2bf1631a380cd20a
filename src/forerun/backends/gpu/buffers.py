"""The buffers of a pass on the device; their addresses never change, as recorded passes use them.

Legend: R the largest number of rows of a pass, H hidden size.
"""

from typing import Final, TypeAlias

import torch
from torch import Tensor

from forerun.backends.bind import FINAL_NORM, BoundWeights
from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.attention import AttentionWorkspace
from forerun.backends.gpu.passes.expert_pairs import ExpertPairs
from forerun.backends.gpu.passes.linear_buffers import SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.core.model_spec import ModelSpec

NARROW_ROWS: Final = 32  # Up to this many rows, a pass reads weights once and splits attention over the text.

DeviceWeights: TypeAlias = BoundWeights[DeviceLinear, Tensor]


class Buffers:
    """The buffers of a pass. `x` is the residual stream; `h`, `q`, `mixed` and `gated` have the compute dtype. Layers
    with fewer heads or a narrower MLP use less of them, see `of_layer`.

    `branch` is a sublayer's output before its norm, and `qkv` the products before a norm over all heads, both float32;
    a model without such norms has none. Only models with embeddings for each layer have `layer_projection`,
    `layer_inputs` and `gate_products`, float32, and `gate_input`; only those with experts have `router`, float32, and
    `pairs`.
    """

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, *, max_rows: int, max_splits: int, dtype: torch.dtype
    ) -> None:
        device = bound.norms[FINAL_NORM].device
        linears = list(bound.linears.values())
        most_tiles = max(num_tiles_of(spec.hidden_size), *(packed.num_tiles for packed in linears))

        def empty(width: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(max_rows, width, dtype=kind, device=device)

        self._layers = [spec.of_layer(layer) for layer in range(spec.num_layers)]
        most_q = max(one.q_size for one in self._layers)
        self.x = empty(spec.hidden_size, torch.float32)
        self.h = empty(spec.hidden_size)
        self.q = empty(most_q)
        self.mixed = empty(most_q)
        self.gated = empty(max(one.intermediate_size for one in self._layers))
        self.branch = empty(0 if spec.norms == "before" else spec.hidden_size, torch.float32)
        self.qkv = empty((spec.q_size + 2 * spec.kv_size) * spec.qk_norm_whole, torch.float32)
        own = spec.layer_input_size
        all_own = spec.layer_input_size * spec.num_layers
        self.layer_projection = empty(all_own, torch.float32)
        self.layer_inputs = empty(all_own, torch.float32)
        self.gate_products = empty(own, torch.float32)
        self.gate_input = empty(own)
        self.router = empty(spec.num_experts, torch.float32)
        self.pairs = ExpertPairs.for_model(spec, max_rows=max_rows, dtype=dtype, device=str(device))
        self._features: dict[int, Tensor] = {}
        self.squares = torch.zeros(most_tiles, max_rows, device=device)
        self.workspace = SplitWorkspace.for_linears(linears, max_rows=max_rows, device=str(device))
        self.attention = AttentionWorkspace.for_heads(
            max_rows=NARROW_ROWS, num_heads=spec.num_heads, head_dim=max(one.head_dim for one in self._layers),
            max_splits=max_splits, device=str(device),
        )  # fmt: skip

    def of_layer(self, name: str, layer: int) -> Tensor:
        """A buffer as a layer uses it: the first numbers of its memory, row by row."""
        whole: Tensor = getattr(self, name)
        widths = {"q": "q_size", "mixed": "q_size", "gated": "intermediate_size"}
        if name not in widths:
            return whole
        width = int(getattr(self._layers[layer], widths[name]))
        return whole.view(-1)[: len(whole) * width].view(-1, width)

    def features(self, num_taps: int) -> Tensor:
        """Buffer of the taps' copies, [R, num_taps, H]."""
        if num_taps not in self._features:
            max_rows, size = self.x.shape
            self._features[num_taps] = self.x.new_zeros(max_rows, num_taps, size)
        return self._features[num_taps]
