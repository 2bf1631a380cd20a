"""One transformer layer of a draft head, on any number of rows, in plain torch.

Legend: T rows, S slots, H hidden size, Q query heads, K key/value heads, N both, D head size; dots stand for texts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.model_spec import ModelSpec

QKV = ("q_proj", "k_proj", "v_proj")


class HeadLayer:
    """A layer of the Llama kind, divided where attention stands, because heads differ in what they attend to.

    Args:
        weights: all weights of the head by their published names.
        part: the beginning of the layer's names, such as "layers.0.".
    """

    def __init__(self, weights: Mapping[str, Tensor], part: str, body: ModelSpec) -> None:
        self._weights, self._part, self._body = weights, part, body
        self._qkv, self._qkv_bias = self._joined([f"self_attn.{name}" for name in QKV])
        self._gate_up, _ = self._joined(["mlp.gate_proj", "mlp.up_proj"])

    def qkv(self, x: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., T, Q, D], keys and values [..., T, K, D] of rows x [..., T, I]; queries and keys are rotated.

        Args:
            cos_sin: [T, 2, D], see `model.rope`.
        """
        body = self._body
        flat = functional.linear(x, self._qkv, self._qkv_bias)
        heads = flat.view(*flat.shape[:-1], -1, body.head_dim)
        q, k, v = torch.split(heads, [body.num_heads, body.num_kv_heads, body.num_kv_heads], -2)
        if body.qk_norm:
            q, k = self.norm("self_attn.q_norm", q), self.norm("self_attn.k_norm", k)
        return rotate(q, cos_sin), rotate(k, cos_sin), v

    def kv(self, x: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone, [..., T, K, D], of rows that ask nothing."""
        body = self._body
        bias = None if self._qkv_bias is None else self._qkv_bias[body.q_size :]
        flat = functional.linear(x, self._qkv[body.q_size :], bias)
        k, v = flat.view(*flat.shape[:-1], -1, body.head_dim).chunk(2, -2)
        if body.qk_norm:
            k = self.norm("self_attn.k_norm", k)
        return rotate(k, cos_sin), v

    def attended(self, mixed: Tensor) -> Tensor:
        """The output [..., T, H] of attention, before the residual is added."""
        bias = self._weights.get(f"{self._part}self_attn.o_proj.bias")
        return functional.linear(mixed, self._weights[f"{self._part}self_attn.o_proj.weight"], bias)

    def mlp(self, x: Tensor) -> Tensor:
        """The output [..., T, H] of the MLP for normalised rows, before the residual is added."""
        gate, up = functional.linear(x, self._gate_up).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, self._weights[f"{self._part}mlp.down_proj.weight"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        return rms(x, self._weights[f"{self._part}{name}.weight"], self._body.norm_eps)

    def _joined(self, names: list[str]) -> tuple[Tensor, Tensor | None]:
        weights = [self._weights[f"{self._part}{name}.weight"] for name in names]
        biases = [self._weights.get(f"{self._part}{name}.bias") for name in names]
        has_bias = any(bias is not None for bias in biases)
        known = [
            weight.new_zeros(len(weight)) if bias is None else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
        return torch.cat(weights), torch.cat(known) if has_bias else None


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, in the weight's dtype: products may be narrower while a head is trained."""
    return functional.rms_norm(x.to(weight.dtype), x.shape[-1:], weight, eps)


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotary position embedding of heads [..., T, N, D]; sin carries a minus sign in its first half."""
    cos, sin = cos_sin[..., :1, :], cos_sin[..., 1:, :]
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """Attention with the query heads of a key head stacked as rows: [..., T, Q * D].

    Args:
        q: [..., T, Q, D].
        k, v: [..., S, K, D].
        sees: bool [..., T, S]; every row must see a slot.
    """
    *texts, num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[-2]
    group = num_heads // num_kv_heads
    stacked = (
        q.reshape(*texts, num_rows, num_kv_heads, group, head_dim).movedim(-4, -2).flatten(-3, -2)
    )  # [K, G * T, D]
    mask = sees.repeat(*[1] * (sees.dim() - 2), group, 1).unsqueeze(-3)
    mixed = functional.scaled_dot_product_attention(stacked, k.transpose(-3, -2), v.transpose(-3, -2), mask)
    return mixed.reshape(*texts, num_kv_heads, group, num_rows, head_dim).movedim(-2, -4).flatten(-3)
