"""One transformer layer of a draft head, on any number of rows, in plain torch.

Legend: T rows, S slots, H hidden size, Q query heads, K key/value heads, N both, D head size; dots stand for texts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.model_spec import ModelSpec

NARROW_BYTES: Final = 4  # of narrower numbers, whose scores must be rounded less
Linear: TypeAlias = Callable[[Tensor], Tensor]
Embed: TypeAlias = Callable[[Tensor], Tensor]  # tokens [...] to the rows [..., H] of an embedding
MakeLinear: TypeAlias = Callable[[Tensor, Tensor | None], Linear]


def plain_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A linear layer with gradients."""
    return lambda x: functional.linear(x, weight, bias)


def embedding(table_VH: Tensor) -> Embed:
    """The rows of this table."""
    return lambda ids: functional.embedding(ids, table_VH)


class HeadWeights:
    """A head's weights by their published names, and how its linear layers are multiplied.

    A weight that was made a linear layer is not kept, as the layer may hold it in another form.
    """

    def __init__(self, tensors: Mapping[str, Tensor], make_linear: MakeLinear = plain_linear) -> None:
        self._tensors = dict(tensors)
        self._make_linear = make_linear

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def linear(self, *names: str) -> Linear:
        """One product with these weights, above each other, and their biases."""
        return self._make_linear(*self.stacked(*names))

    def stacked(self, *names: str) -> tuple[Tensor, Tensor | None]:
        """These weights above each other, and their biases, if any has one; they are no longer kept here."""
        weights = [self._tensors.pop(f"{name}.weight") for name in names]
        biases = [self._tensors.pop(f"{name}.bias", None) for name in names]
        if all(bias is None for bias in biases):
            return torch.cat(weights), None
        known = [
            weight.new_zeros(len(weight)) if bias is None else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
        return torch.cat(weights), torch.cat(known)


class HeadLayer:
    """A layer of the Llama kind, divided where attention stands, because heads differ in what they attend to.

    Args:
        part: the beginning of the layer's names, such as "layers.0.".
    """

    def __init__(self, weights: HeadWeights, part: str, body: ModelSpec) -> None:
        self._weights = weights
        self._part = part
        self._body = body
        self._qkv = weights.linear(*(f"{part}self_attn.{name}_proj" for name in "qkv"))
        self.attended = weights.linear(f"{part}self_attn.o_proj")  # attention's output, before the residual is added
        self._gate_up = weights.linear(f"{part}mlp.gate_proj", f"{part}mlp.up_proj")
        self._down = weights.linear(f"{part}mlp.down_proj")

    def qkv(self, x: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., T, Q, D], keys and values [..., T, K, D] of rows x [..., T, I]; queries and keys are rotated.

        Args:
            cos_sin: [T, 2, D], see `model.rope`.
        """
        body = self._body
        flat = self._qkv(x)
        heads = flat.view(*flat.shape[:-1], -1, body.head_dim)
        sizes = [body.num_heads, body.num_kv_heads]
        q_and_k, v = torch.split(heads, [sum(sizes), body.num_kv_heads], -2)
        if body.qk_norm:
            q, k = torch.split(q_and_k, sizes, -2)
            q_and_k = torch.cat((self.norm("self_attn.q_norm", q), self.norm("self_attn.k_norm", k)), -2)
        q, k = torch.split(rotate(q_and_k, cos_sin), sizes, -2)
        return q, k, v

    def mlp(self, x: Tensor) -> Tensor:
        """The output [..., T, H] of the MLP for normalised rows, before the residual is added."""
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(functional.silu(gate) * up)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        return rms(x, self._weights[f"{self._part}{name}.weight"], self._body.norm_eps)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, in the weight's dtype: products may be narrower while a head is trained."""
    return functional.rms_norm(x.to(weight.dtype), x.shape[-1:], weight, eps)


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotary position embedding of heads [..., T, N, D]; sin carries a minus sign in its first half."""
    cos = cos_sin[..., :1, :]
    sin = cos_sin[..., 1:, :]
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


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
    k = k.transpose(-3, -2)
    v = v.transpose(-3, -2)
    if texts or q.element_size() < NARROW_BYTES:
        mask = sees.repeat(*[1] * (sees.dim() - 2), group, 1).unsqueeze(-3)
        mixed = functional.scaled_dot_product_attention(stacked, k, v, mask)
    else:  # the same with a third of the calls, which take most of the time of a few rows on a CPU
        scores = (stacked * head_dim**-0.5).bmm(k.transpose(1, 2)).view(num_kv_heads, group, num_rows, -1)
        shares = scores.masked_fill(~sees, -math.inf).softmax(-1)
        mixed = shares.view(num_kv_heads, group * num_rows, -1).bmm(v)
    return mixed.reshape(*texts, num_kv_heads, group, num_rows, head_dim).movedim(-2, -4).flatten(-3)
