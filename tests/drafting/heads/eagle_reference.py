"""An EAGLE-3 head in numpy, row by row and without a cache, from the published formulas (arXiv 2503.01840)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.eagle import EagleSpec

Floats = NDArray[np.float64]


def rms(x: Floats, weight: Floats, eps: float) -> Floats:
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def silu(x: Floats) -> Floats:
    return x / (1.0 + np.exp(-x))


def turned(x: Floats, place: int, theta: float) -> Floats:
    """A head's vector turned by its place; angles have the model's precision, which is float32."""
    size = len(x)
    rates = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    angles = torch.tensor(float(place)) * rates
    cos = angles.cos().double().numpy()
    sin = angles.sin().double().numpy()
    left = x[: size // 2]
    right = x[size // 2 :]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin])


class LayerReference:
    """One layer that keeps the keys and values of the rows that it has seen, by row."""

    def __init__(self, weights: Mapping[str, Floats], part: str, body: ModelSpec) -> None:
        self.weights = weights
        self.part = part
        self.body = body

    def norm(self, name: str, x: Floats) -> Floats:
        return rms(x, self.weights[f"{self.part}{name}.weight"], self.body.norm_eps)

    def linear(self, name: str, x: Floats) -> Floats:
        bias = self.weights.get(f"{self.part}{name}.bias", np.float64(0.0))
        return np.asarray(self.weights[f"{self.part}{name}.weight"] @ x + bias)

    def heads(self, name: str, x: Floats, place: int | None) -> list[Floats]:
        """The heads of queries, keys or values; normalised and turned if a place is given."""
        parts = np.split(
            self.linear(f"self_attn.{name}_proj", x),
            self.linear(f"self_attn.{name}_proj", x).size // self.body.head_dim,
        )
        if place is not None and self.body.qk_norm:
            parts = [self.norm(f"self_attn.{name}_norm", part) for part in parts]
        return parts if place is None else [turned(part, place, self.body.rope.theta) for part in parts]

    def attend(self, queries: Sequence[Floats], rows: Sequence[tuple[list[Floats], list[Floats]]]) -> Floats:
        group = self.body.num_heads // self.body.num_kv_heads
        mixed = []
        for head, query in enumerate(queries):
            scores = np.array([query @ keys[head // group] for keys, _ in rows]) / np.sqrt(self.body.head_dim)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            mixed.append(sum(share * values[head // group] for share, (_, values) in zip(shares, rows, strict=True)))
        return self.linear("self_attn.o_proj", np.concatenate(mixed))

    def mlp(self, x: Floats) -> Floats:
        return self.linear("mlp.down_proj", silu(self.linear("mlp.gate_proj", x)) * self.linear("mlp.up_proj", x))


def eagle_logits(
    spec: EagleSpec, weights: Mapping[str, Floats], text: Sequence[int], features: Mapping[int, Floats],
    drafted: Sequence[int] = (),
) -> Floats:  # fmt: skip
    """The logits after text and drafted tokens.

    Args:
        features: [F, G] by place; tokens behind a missing one have no row.
    """
    body = spec.body
    layers = [LayerReference(weights, f"layers.{idx}.", body) for idx in range(body.num_layers)]
    seen: list[list[tuple[list[Floats], list[Floats]]]] = [[] for _ in layers]
    state = stream = np.zeros(0)
    for place, token in enumerate([*text, *drafted]):
        if place < len(text):
            if place - 1 not in features:
                continue
            each = list(features[place - 1])
            if spec.norms_each:
                each = [rms(one, weights[f"fc_norm.{idx}.weight"], body.norm_eps) for idx, one in enumerate(each)]
            joined = np.concatenate(each)
            if spec.norms_all:
                joined = rms(joined, weights["input_norm.weight"], body.norm_eps)
            state = weights["fc.weight"] @ joined
        normed = layers[0].norm("hidden_norm", state)
        x = np.concatenate([layers[0].norm("input_layernorm", weights["embed_tokens.weight"][token]), normed])
        stream = normed if spec.norms_residual else state
        for layer, rows in zip(layers, seen, strict=True):
            if layer is not layers[0]:
                x = layer.norm("input_layernorm", stream)
            rows.append((layer.heads("k", x, place), layer.heads("v", x, None)))
            stream = stream + layer.attend(layer.heads("q", x, place), rows)
            stream = stream + layer.mlp(layer.norm("post_attention_layernorm", stream))
        state = rms(stream, weights["norm.weight"], body.norm_eps) if spec.norms_state else stream
    last = rms(stream, weights["norm.weight"], body.norm_eps) if spec.norms_logits else stream
    return np.asarray(weights["lm_head.weight"] @ last)
