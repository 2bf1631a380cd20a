"""The packed layers of a model: scales of their inputs, ranges of their weights, and 4-bit codes.

The weights of each input are multiplied by its scale and the input is divided by it, which changes no product; weights
with a larger scale then use more of their groups' 16 steps. Source: AWQ (arXiv 2306.00978), section 3.2: the scales
are a power of the inputs' mean magnitude, and the power is searched for. Unlike AutoAWQ, we minimise the error of the
layer's own products, not that of the block which contains it. Scales are float16, zero points have 4 bits.

Legend: O output features, I input features, G groups, M inputs of a group, N rows of inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.model.quantise import MAX_INT4, dequantise, in_groups, nonzero, round_to_int4
from forerun.model.weights import Int4Weight
from forerun_lab.awq.layer_inputs import LayerInputs

CLIPPING: Final = tuple(1.0 - step / 20 for step in range(11))  # shares of a group's range, as AutoAWQ tries them


def to_groups(weight_OI: Tensor, group_size: int, clips_OG: Tensor | None = None) -> Int4Weight:
    """Quantise each group over the range from its smallest to its largest weight (0 included), or a share of it.

    Args:
        weight_OI: float32; `group_size` divides I.
        clips_OG: the share of each group's range; None: the whole range.
    """
    plain_OGM = in_groups(weight_OI, group_size)
    share_OG1 = 1.0 if clips_OG is None else clips_OG[:, :, None]
    low_OG1 = plain_OGM.amin(-1, keepdim=True).clamp_(max=0.0) * share_OG1
    high_OG1 = plain_OGM.amax(-1, keepdim=True).clamp_(min=0.0) * share_OG1
    scales_OG1 = ((high_OG1 - low_OG1) / MAX_INT4).half().float()
    zeros_OG1 = (-low_OG1 / nonzero(scales_OG1)).round_().clamp_(0, MAX_INT4)
    return Int4Weight(
        values_OI=round_to_int4(plain_OGM, scales_OG1, zeros_OG1).flatten(1).to(torch.uint8),
        scales_OG=scales_OG1.squeeze(-1),
        zeros_OG=zeros_OG1.squeeze(-1).to(torch.uint8),
        group_size=group_size,
    )


def best_clips(weight_OI: Tensor, x_NI: Tensor, group_size: int) -> Tensor:
    """The share of each group's range [O, G] that gives the smallest squared error of the products with `x_NI`.

    The error of weights d is d C d, where C [M, M] is the sum over rows of the products of a group's inputs.
    """
    x_GNM = in_groups(x_NI, group_size).transpose(0, 1)
    moments_GMM = x_GNM.transpose(1, 2) @ x_GNM
    plain_OGM = in_groups(weight_OI, group_size)
    best_OG = torch.ones(plain_OGM.shape[:2])
    least_OG = torch.full_like(best_OG, torch.inf)
    for share in CLIPPING:
        rounded_OGM = in_groups(
            dequantise(to_groups(weight_OI, group_size, torch.full_like(best_OG, share))), group_size
        )
        off_GOM = (rounded_OGM - plain_OGM).transpose(0, 1)
        error_OG = ((off_GOM @ moments_GMM) * off_GOM).sum(-1).t()
        best_OG = torch.where(error_OG < least_OG, share, best_OG)
        least_OG = torch.minimum(error_OG, least_OG)
    return best_OG


NUM_POWERS: Final = 20  # from 0 (no scaling) to 0.95, as in AutoAWQ
LEAST: Final = 1e-4  # smallest scale before centring, for inputs that are always 0


def best_scales(weight_OI: Tensor, x_NI: Tensor, means_I: Tensor, group_size: int) -> Tensor:
    """The scales [I], centred on 1, that give the smallest squared error of the products with these rows."""
    best_I = torch.ones_like(means_I)
    least = torch.inf
    for step in range(NUM_POWERS):
        scales_I = centred(means_I.pow(step / NUM_POWERS).clamp(min=LEAST))
        rounded_OI = dequantise(to_groups(weight_OI * scales_I, group_size)) / scales_I
        error = float((x_NI @ (rounded_OI - weight_OI).T).square_().sum())
        if error < least:
            best_I = scales_I
            least = error
    return best_I


def centred(scales_I: Tensor) -> Tensor:
    """Divide the scales by the geometric mean of the smallest and the largest."""
    return scales_I / (scales_I.max() * scales_I.min()).sqrt()


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
        prefix = f"layers.{layer}."
        spec = self.spec
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
        weight_OI = self.weights[f"{name}.weight"].float()
        x_NI = self.inputs.rows(name)
        scales_I = feed(best_scales(weight_OI, x_NI, means_I, self.group_size))
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
