"""Packing one layer of a model: scale its inputs, clip the ranges of its groups, round its weights.

Legend: O output features, I input features, N rows of inputs, K key and value features, D head size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.awq.layer_inputs import LayerInputs
from forerun.awq.rounding import best_clips, to_groups
from forerun.awq.scaling import best_scales
from forerun.core.model_spec import ModelSpec
from forerun.model.weights import Int4Weight

Feed = Callable[[Tensor], Tensor]  # divides a layer's inputs by scales [I], returns the scales after rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPacker:
    """Packs the layers of a model.

    Args:
        weights: keyed by the names of `tensor_plan`, "layers.0.qkv.weight"; norms and biases are changed in place.
        dtype: the dtype that norms and biases will be stored in.
    """

    spec: ModelSpec
    weights: dict[str, Tensor]
    inputs: LayerInputs
    group_size: int
    dtype: torch.dtype

    def pack(self, layer: int) -> dict[str, Int4Weight]:
        """The packed weights of a layer, by name; the plain ones are removed from `weights`.

        Queries and keys are not clipped, because their errors multiply in the attention scores.
        """
        rows = self.scale(layer)
        starts = {f"layers.{layer}.qkv": self.spec.q_size + self.spec.kv_size}
        return {name: self._round(name, x_NI, starts.get(name, 0)) for name, x_NI in rows.items()}

    def scale(self, layer: int) -> dict[str, Tensor]:
        """Scale the layer's weights and inputs; products change only by float32 rounding. Returns the scaled sample
        rows of each linear layer, by name."""
        prefix, spec = f"layers.{layer}.", self.spec
        qkv, out, gate_up, down = (f"{prefix}{part}" for part in ("qkv", "attention_out", "gate_up", "mlp_out"))
        feeds: dict[str, Feed] = {
            qkv: lambda scales_I: self._divide_norm(f"{prefix}attention_norm", scales_I),
            out: lambda scales_I: self._divide_values(qkv, scales_I),
            gate_up: lambda scales_I: self._divide_norm(f"{prefix}mlp_norm", scales_I),
            down: lambda scales_I: self._divide_rows(gate_up, spec.intermediate_size, scales_I),
        }
        means = {name: self.inputs.means(name) for name in feeds}
        means[out] = self._over_shared_heads(means[out])
        return {name: self._scale(name, means[name], feed) for name, feed in feeds.items()}

    def _scale(self, name: str, means_I: Tensor, feed: Feed) -> Tensor:
        """Multiply a layer's weights by their best scales; returns its input rows [N, I] divided by them."""
        weight_OI, x_NI = self.weights[f"{name}.weight"].float(), self.inputs.rows(name)
        scales_I = best_scales(weight_OI, x_NI, means_I, self.group_size)
        scales_I = feed(scales_I)
        self.weights[f"{name}.weight"] = weight_OI * scales_I
        return x_NI / scales_I

    def _round(self, name: str, x_NI: Tensor, first_clipped: int) -> Int4Weight:
        weight_OI = self.weights.pop(f"{name}.weight")
        clips_OG = torch.ones(weight_OI.shape[0], weight_OI.shape[1] // self.group_size)
        clips_OG[first_clipped:] = best_clips(weight_OI[first_clipped:], x_NI, self.group_size)
        return to_groups(weight_OI, self.group_size, clips_OG)

    def _divide_norm(self, name: str, scales_I: Tensor) -> Tensor:
        """Divide a norm's weights; returns the scales recomputed from the norm as rounded to its stored dtype."""
        norm_I = self.weights[f"{name}.weight"].float()
        divided_I = (norm_I / scales_I).to(self.dtype).float()
        self.weights[f"{name}.weight"] = divided_I
        return torch.where(divided_I == 0.0, scales_I, norm_I / divided_I)

    def _divide_rows(self, name: str, start: int, scales: Tensor) -> Tensor:
        """Divide the outputs of another layer from row `start` on."""
        self.weights[f"{name}.weight"] = self.weights[f"{name}.weight"].float()
        self.weights[f"{name}.weight"][start:] /= scales[:, None]
        if f"{name}.bias" in self.weights:
            self.weights[f"{name}.bias"][start:] /= scales
        return scales

    def _divide_values(self, qkv: str, scales_I: Tensor) -> Tensor:
        """Divide the value outputs; the query heads that share a value head have the same scales."""
        scales_K = scales_I.view(self.spec.num_kv_heads, -1, self.spec.head_dim)[:, 0].flatten()
        self._divide_rows(qkv, self.spec.q_size + self.spec.kv_size, scales_K)
        return scales_I

    def _over_shared_heads(self, means_I: Tensor) -> Tensor:
        """Average over the query heads that share a value head, because they must have the same scales."""
        spec = self.spec
        means_KND = means_I.view(spec.num_kv_heads, -1, spec.head_dim)
        return means_KND.mean(1, keepdim=True).expand_as(means_KND).flatten()
