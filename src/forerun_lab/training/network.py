"""The trainable twin of the Llama architecture, written for training alone (no cache)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One model's sizes. Vocabulary and head are tied."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    head_dim: int = 64
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048


class Block(nn.Module):
    """One layer; `keep` holds 1 or 0 for its attention and its MLP sublayer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        q_width = shape.num_heads * shape.head_dim
        kv_width = shape.num_kv_heads * shape.head_dim
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.q = nn.Linear(width, q_width, bias=False)
        self.k = nn.Linear(width, kv_width, bias=False)
        self.v = nn.Linear(width, kv_width, bias=False)
        self.o = nn.Linear(q_width, width, bias=False)
        self.gate = nn.Linear(width, shape.intermediate_size, bias=False)
        self.up = nn.Linear(width, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, width, bias=False)

    def forward(self, x_BTH: Tensor, cos_TD: Tensor, sin_TD: Tensor, keep: Tensor) -> Tensor:
        x_BTH = x_BTH + keep[0] * self.attention(x_BTH, cos_TD, sin_TD)
        y_BTH = functional.rms_norm(x_BTH, x_BTH.shape[-1:], self.mlp_norm, self.shape.norm_eps)
        return x_BTH + keep[1] * self.down(functional.silu(self.gate(y_BTH)) * self.up(y_BTH))

    def attention(self, x_BTH: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        batch, length, width = x_BTH.shape
        y_BTH = functional.rms_norm(x_BTH, (width,), self.attention_norm, self.shape.norm_eps)
        q = self.q(y_BTH).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        k = self.k(y_BTH).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        v = self.v(y_BTH).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        repeats = self.shape.num_heads // self.shape.num_kv_heads
        q = rotate(q, cos_TD, sin_TD)
        k = rotate(k, cos_TD, sin_TD).repeat_interleave(repeats, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v.repeat_interleave(repeats, 1), is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, -1))


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    half = x_BHTD.shape[-1] // 2
    turned = torch.cat((-x_BHTD[..., half:], x_BHTD[..., :half]), -1)
    return (x_BHTD * cos_TD + turned * sin_TD).to(x_BHTD.dtype)


class Network(nn.Module):
    """Tokens to logits; sublayers may be dropped at random, first and last layer never."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, max_drop: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.max_drop = max_drop
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        inverse = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_positions).float(), inverse).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.initialise()

    def initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 if "embedding" in name else parameter.shape[1] ** -0.5
                if name.endswith(("o.weight", "down.weight")):
                    scale /= (2 * self.shape.num_layers) ** 0.5
                nn.init.normal_(parameter, std=scale)

    def sublayer_gates(self) -> Tensor:
        """[L, 2] of 1 and 0, drawn afresh for each step; the chance to drop grows with depth (LayerSkip 2404.16710)."""
        count = self.shape.num_layers
        drop = torch.linspace(0.0, self.max_drop, count)
        drop[-1] = 0.0
        return (torch.rand(count, 2) >= drop[:, None]).float()

    def forward(self, ids_BT: Tensor) -> Tensor:
        length = ids_BT.shape[1]
        cos_TD = self.cos[:length]
        sin_TD = self.sin[:length]
        gates = self.sublayer_gates() if self.training and self.max_drop else torch.ones(self.shape.num_layers, 2)
        x_BTH = self.embedding(ids_BT)
        for block, keep in zip(self.blocks, gates, strict=True):
            if keep.any():
                x_BTH = block(x_BTH, cos_TD, sin_TD, keep)
        x_BTH = functional.rms_norm(x_BTH, x_BTH.shape[-1:], self.norm, self.shape.norm_eps)
        return functional.linear(x_BTH, self.embedding.weight)
