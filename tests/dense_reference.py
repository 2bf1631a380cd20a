"""What a decoder-only transformer computes, written once more and as plainly as possible.

No cache, no tree, no fused weights, no shared code with the package: it runs the whole text again for every token. The
package is compared with it, so the two must stay strangers.

Legend: T rows, N heads, D head size, H hidden size, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec

MASK_32, MASK_64 = (1 << 32) - 1, (1 << 64) - 1


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rope_angles(spec: ModelSpec, num_rows: int) -> Tensor:
    """Angles in float32, as checkpoints were trained with."""
    rope = spec.rope
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, spec.head_dim, 2).float() / spec.head_dim))
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low, high = rope.low_freq_factor, rope.high_freq_factor
        smooth = (rope.original_max_positions / wavelengths - low) / (high - low)
        blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
        is_slow = wavelengths > rope.original_max_positions / low
        is_fast = wavelengths < rope.original_max_positions / high
        frequencies = torch.where(is_slow, frequencies / rope.factor, torch.where(is_fast, frequencies, blended))
    half = torch.outer(torch.arange(num_rows).float(), frequencies)
    return torch.cat((half, half), -1)


def turn(x_TND: Tensor, angles: Tensor) -> Tensor:
    left, right = x_TND.chunk(2, -1)
    cos, sin = angles.cos().to(x_TND.dtype)[:, None], angles.sin().to(x_TND.dtype)[:, None]
    return x_TND * cos + torch.cat((-right, left), -1) * sin


def dense_logits(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    token_ids: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    visible_TT: Tensor | None = None,
    skipped: frozenset[tuple[int, str]] = frozenset(),
) -> Tensor:
    """Logits [T, V] after each token of a whole text; `visible_TT` replaces the causal mask."""

    def linear(x: Tensor, name: str) -> Tensor:
        bias = weights.get(f"{name}.bias")
        return x @ weights[f"{name}.weight"].T + (0 if bias is None else bias)

    num_rows, num_heads, num_kv = len(token_ids), spec.num_heads, spec.num_kv_heads
    all_angles = rope_angles(spec, spec.max_positions)
    angles = all_angles[list(positions) if positions is not None else list(range(num_rows))]
    visible = torch.ones(num_rows, num_rows).tril() > 0 if visible_TT is None else visible_TT
    x = weights["embedding.weight"][list(token_ids)]
    for layer in range(spec.num_layers):
        part = f"layers.{layer}."
        if (layer, "attention") not in skipped:
            h = normalise(x, weights[part + "attention_norm.weight"], spec.norm_eps)
            q, k, v = linear(h, part + "qkv").split([spec.q_size, spec.kv_size, spec.kv_size], -1)
            q, k, v = (t.reshape(num_rows, -1, spec.head_dim) for t in (q, k, v))
            if spec.qk_norm:
                q = normalise(q, weights[part + "q_norm.weight"], spec.norm_eps)
                k = normalise(k, weights[part + "k_norm.weight"], spec.norm_eps)
            q, k = turn(q, angles), turn(k, angles)
            heads = []
            for head in range(num_heads):
                shared = head // (num_heads // num_kv)
                affinity = q[:, head] @ k[:, shared].T / spec.head_dim**0.5
                heads.append(affinity.masked_fill(~visible, -math.inf).softmax(-1) @ v[:, shared])
            x = x + linear(torch.cat(heads, -1), part + "attention_out")
        if (layer, "mlp") not in skipped:
            h = normalise(x, weights[part + "mlp_norm.weight"], spec.norm_eps)
            gate, up = linear(h, part + "gate_up").chunk(2, -1)
            x = x + linear(gate * gate.sigmoid() * up, part + "mlp_out")
    x = normalise(x, weights["final_norm.weight"], spec.norm_eps)
    return linear(x, "embedding" if spec.tied_embeddings else "head")


def mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


def mix32(value: int) -> int:
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & MASK_32
    value = ((value ^ (value >> 15)) * 0xD35A2D97) & MASK_32
    return value ^ (value >> 15)


def gumbel(seed: int, position: int, token_id: int) -> float:
    """The noise of one token at one position, in Python's own integers; rounded to float32."""
    key = mix64(mix64(seed) ^ position)
    bits = mix32(mix32((token_id * 0x9E3779B1 + key) & MASK_32) ^ (key >> 32))
    signed = bits - (1 << 32) if bits >> 31 else bits
    return float(np.float32(-math.log(-math.log((signed + 2.0**31 + 0.5) * 2.0**-32))))


def shaped_scores(
    logits: Sequence[float], params: SamplingParams, prompt_ids: Sequence[int], answer: Sequence[int]
) -> list[float]:
    """Scores of one row: bias, penalties, temperature, top_k, top_p, min_p, in this order."""
    scores = list(logits)
    for token, bias in params.logit_bias.items():
        if 0 <= token < len(scores):
            scores[token] += float(np.float32(bias))
    for token in {*prompt_ids, *answer}:
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(answer):
        scores[token] -= params.presence_penalty + params.frequency_penalty * list(answer).count(token)
    if params.is_greedy:
        return scores
    scores = [score / params.temperature for score in scores]
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if params.top_k:
        ranked = ranked[: params.top_k]
    weights = [math.exp(scores[token] - scores[ranked[0]]) for token in ranked]
    total, before, kept = sum(weights), 0.0, []
    for token, weight in zip(ranked, weights, strict=True):
        if (params.top_p == 1.0 or before < params.top_p) and weight >= params.min_p:
            kept.append(token)
        before += weight / total
    return [score if token in kept else -math.inf for token, score in enumerate(scores)]


def reference_text(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    num_tokens: int,
) -> list[int]:
    """The text by full recomputation: argmax(score + g) over the whole text again for every token."""
    answer: list[int] = []
    for _ in range(num_tokens):
        text = [*prompt_ids, *answer]
        scores = shaped_scores(dense_logits(spec, weights, text)[-1].tolist(), params, prompt_ids, answer)
        if not params.is_greedy:
            scores = [score + gumbel(seed, len(text), token) for token, score in enumerate(scores)]
        answer.append(max(range(len(scores)), key=lambda token: (scores[token], -token)))
    return answer
