"""What a decoder-only transformer computes, written once more and as plainly as possible.

No cache, no tree, no fused weights, no shared code with the package: it runs the whole text again for every token. The
package is compared with it, so the two must stay strangers.

Legend: T rows, N heads, D head size, H hidden size, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.mixers import Mamba2, Mixer, ShortConvolution
from forerun.core.model_spec import ModelSpec, RopeSpec

MASK_32 = (1 << 32) - 1
MASK_64 = (1 << 64) - 1


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rope_angles(spec: ModelSpec, rope: RopeSpec, num_rows: int) -> Tensor:
    """Angles in float32, as checkpoints were trained with; 0 for pairs that do not turn."""
    size = rope.rotated_dims or spec.head_dim
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, size, 2).float() / size))
    if rope.kind == "longrope":
        frequencies = 1.0 / (torch.tensor(rope.divisors) * rope.theta ** (torch.arange(0, size, 2).float() / size))
    if rope.kind == "yarn":
        turns = [size * math.log(rope.original_max_positions / (n * 2 * math.pi)) / (2 * math.log(rope.theta))
                 for n in (rope.beta_fast, rope.beta_slow)]  # fmt: skip
        low, high = (math.floor(turns[0]), math.ceil(turns[1])) if rope.truncate else turns
        low = max(low, 0)
        high = min(high, size - 1)
        ramp = ((torch.arange(size // 2).float() - low) / (high - low or 0.001)).clamp(0, 1)
        frequencies = ramp * frequencies / rope.factor + (1 - ramp) * frequencies
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low = rope.low_freq_factor
        high = rope.high_freq_factor
        smooth = (rope.original_max_positions / wavelengths - low) / (high - low)
        blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
        is_slow = wavelengths > rope.original_max_positions / low
        is_fast = wavelengths < rope.original_max_positions / high
        frequencies = torch.where(is_slow, frequencies / rope.factor, torch.where(is_fast, frequencies, blended))
    half = torch.outer(torch.arange(num_rows).float(), frequencies)
    half = torch.cat((half, torch.zeros(num_rows, (spec.head_dim - size) // 2)), -1)
    return torch.cat((half, half), -1)


def turn(x_TND: Tensor, rope: RopeSpec, angles: Tensor) -> Tensor:
    left, right = x_TND.chunk(2, -1)
    num_pairs = left.shape[-1]
    factors = torch.ones(num_pairs)
    factors[: (rope.rotated_dims or 2 * num_pairs) // 2] = rope.attention_factor
    factors = torch.cat((factors, factors))
    cos, sin = ((factors * part).to(x_TND.dtype)[:, None] for part in (angles.cos(), angles.sin()))
    return x_TND * cos + torch.cat((-right, left), -1) * sin


def within_window(visible_TT: Tensor, window: int | None) -> Tensor:
    """Of the tokens that each row sees, the last ones."""
    if window is None:
        return visible_TT
    kept = torch.zeros_like(visible_TT)
    for row, seen in enumerate(visible_TT):
        kept[row, seen.nonzero()[-window:, 0]] = True
    return kept


def add_branch(spec: ModelSpec, weights: Mapping[str, Tensor], x: Tensor, branch: Tensor, norm: str) -> Tensor:
    """The residual stream after a sublayer."""
    if spec.norms == "before":
        return x + branch
    return x + normalise(branch, weights[f"{norm}.weight"], spec.norm_eps)


def gated(spec: ModelSpec, gate_up: Tensor) -> Tensor:
    if spec.gate == "relu2":
        return torch.where(gate_up > 0, gate_up, 0.0) ** 2
    gate, up = gate_up.chunk(2, -1)
    if spec.gate == "clamped":
        gate = gate.clamp(max=7.0)
        up = up.clamp(-7.0, 7.0)
        return gate / (1 + torch.exp(-1.702 * gate)) * (1 + up)
    active = gate * gate.sigmoid()
    if spec.gate == "gelu_tanh":
        active = gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    return active * up


def mixture(
    spec: ModelSpec, weights: Mapping[str, Tensor], h: Tensor, linear: Callable[[Tensor, str], Tensor], part: str
) -> Tensor:
    """Every expert of every row, of which the best by the router count."""
    scores = linear(h, part + "router")
    outputs = [
        linear(gated(spec, linear(h, f"{part}experts.{expert}.gate_up")), f"{part}experts.{expert}.out")
        for expert in range(spec.num_experts)
    ]
    routing = spec.routing
    if routing is not None:
        shares = 1 / (1 + torch.exp(-scores))
        scores = shares + weights[part + "router_correction.weight"] if routing.has_correction else shares
    least = scores.sort(-1, descending=True).values[:, spec.num_chosen_experts - 1 : spec.num_chosen_experts]
    if routing is None:
        shares = torch.where(scores >= least, scores.exp(), 0.0)
        shares = shares / shares.sum(-1, keepdim=True)
    else:
        shares = torch.where(scores >= least, shares, 0.0)
        total = shares.sum(-1, keepdim=True) + routing.eps if routing.is_normalised else 1.0
        shares = shares / total * routing.scale
    return sum((shares[:, expert, None] * output for expert, output in enumerate(outputs)), torch.zeros_like(h))


def convolved(weights: Mapping[str, Tensor], x: Tensor, name: str, paths: Sequence[Sequence[int]]) -> Tensor:
    """Each row's last inputs along its path times the taps, the newest input times the last."""
    taps = weights[f"{name}.weight"].flatten(1)
    bias = weights.get(f"{name}_bias.weight", torch.zeros_like(taps[:, 0]))
    rows = []
    for path in paths:
        total = bias
        for back, row in enumerate(reversed(path[-taps.shape[1] :])):
            total = total + taps[:, -1 - back] * x[row]
        rows.append(total)
    return torch.stack(rows)


def mamba_branch(
    mamba: Mamba2, weights: Mapping[str, Tensor], product: Tensor, part: str, paths: Sequence[Sequence[int]]
) -> Tensor:
    """Mamba 2: the recurrence, row by row along each path."""
    num_heads = mamba.num_value_heads
    group = num_heads // mamba.num_key_heads
    gate, channels, step = product.split([mamba.value_size, mamba.num_channels, num_heads], -1)
    channels = convolved(weights, channels, part + "convolution", paths)
    channels = channels * channels.sigmoid()
    x, b, c = channels.split([mamba.value_size, mamba.key_size, mamba.key_size], -1)
    x = x.reshape(len(x), num_heads, mamba.value_dim)
    b, c = (t.reshape(len(t), mamba.num_key_heads, mamba.key_dim) for t in (b, c))
    step = torch.log(1 + torch.exp(step + weights[part + "mamba_bias.weight"])).clamp(*mamba.step_limits)
    decay = (weights[part + "mamba_rates.weight"] * step).exp()
    states: list[Tensor] = []
    outputs = []
    for row, path in enumerate(paths):
        new = []
        heads = []
        for head in range(num_heads):
            old = states[path[-2]][head] if len(path) > 1 else x.new_zeros(mamba.key_dim, mamba.value_dim)
            state = decay[row, head] * old + step[row, head] * torch.outer(b[row, head // group], x[row, head])
            new.append(state)
            skip = weights[part + "mamba_skips.weight"][head]
            heads.append(state.T @ c[row, head // group] + skip * x[row, head])
        states.append(torch.stack(new))
        outputs.append(torch.cat(heads))
    gated_TI = torch.stack(outputs) * gate * gate.sigmoid()
    groups = gated_TI.reshape(len(gated_TI), mamba.num_key_heads, -1)
    return normalise(groups, torch.ones(()), mamba.norm_eps).flatten(1) * weights[part + "mamba_scale.weight"]


def mixer_branch(
    mixer: Mixer, eps: float, weights: Mapping[str, Tensor], product: Tensor, part: str, visible_TT: Tensor
) -> Tensor:
    """What a layer without attention computes before its last product: the recurrence, row by row along each path."""
    paths = [seen.nonzero()[:, 0].tolist() for seen in visible_TT]
    name = part + "convolution"
    if isinstance(mixer, ShortConvolution):
        b, c, x = product.chunk(3, -1)
        return c * convolved(weights, b * x, name, paths)
    if isinstance(mixer, Mamba2):
        return mamba_branch(mixer, weights, product, part, paths)
    num_keys = mixer.num_key_heads
    num_heads = mixer.num_value_heads
    sizes = [mixer.num_channels, mixer.value_size, num_heads, num_heads]
    channels, gate, beta, decay = product.split(sizes, -1)
    channels = convolved(weights, channels, name, paths)
    channels = channels * channels.sigmoid()
    q, k, v = channels.split([mixer.key_size, mixer.key_size, mixer.value_size], -1)
    q, k = (t.reshape(len(t), num_keys, -1) for t in (q, k))
    q, k = (t / (t.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    v = v.reshape(len(v), num_heads, -1)
    beta = beta.sigmoid()
    rates = weights[part + "delta_net_rates.weight"]
    decay = (rates * torch.log(1 + torch.exp(decay + weights[part + "delta_net_bias.weight"]))).exp()
    states: list[Tensor] = []
    outputs = []
    for row, path in enumerate(paths):
        new = []
        for head in range(num_heads):
            shared = head % num_keys if mixer.has_tiled_keys else head // (num_heads // num_keys)
            old = states[path[-2]][head] if len(path) > 1 else v.new_zeros(mixer.key_dim, mixer.value_dim)
            old = old * decay[row, head]
            update = beta[row, head] * (v[row, head] - old.T @ k[row, shared])
            new.append(old + torch.outer(k[row, shared], update))
        states.append(torch.stack(new))
        heads = [
            new[head].T @ q[row, head % num_keys if mixer.has_tiled_keys else head // (num_heads // num_keys)]
            for head in range(num_heads)
        ]
        outputs.append(torch.stack(heads) * mixer.key_dim**-0.5)
    o = normalise(torch.stack(outputs), weights[part + "delta_net_scale.weight"], eps).flatten(1)
    return o * gate * gate.sigmoid()


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

    num_rows = len(token_ids)
    num_heads = spec.num_heads
    num_kv = spec.num_kv_heads
    places = list(positions) if positions is not None else list(range(num_rows))
    everything = torch.ones(num_rows, num_rows).tril() > 0 if visible_TT is None else visible_TT
    x = weights["embedding.weight"][list(token_ids)] * spec.embedding_scale
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    lengths = [math.log(1 + place // spec.rope.original_max_positions) for place in places]
    growth = spec.rope.query_growth * torch.tensor(lengths)
    for layer in range(spec.num_layers):
        part = f"layers.{layer}."
        missing = {(layer, "attention")} if layer in spec.mlp_only else set()
        missing |= {(layer, "mlp")} if layer in spec.mixer_only else set()
        left_out = skipped | missing
        if (layer, "attention") not in left_out:
            h = x
            if spec.norms != "after":
                h = normalise(x, weights[part + "attention_norm.weight"], spec.norm_eps)
        if (layer, "attention") not in left_out and layer in spec.mixer_layers:
            assert spec.mixer is not None
            product = linear(h, part + "mixer_in")
            branch = mixer_branch(spec.mixer, spec.norm_eps, weights, product, part, everything)
            x = x + linear(branch, part + "attention_out")
        elif (layer, "attention") not in left_out:
            q, k, v = linear(h, part + "qkv").split([spec.q_size, spec.kv_size, spec.kv_size], -1)
            if spec.qk_norm_whole:
                q = normalise(q, weights[part + "q_norm.weight"], spec.norm_eps)
                k = normalise(k, weights[part + "k_norm.weight"], spec.norm_eps)
            q, k, v = (t.reshape(num_rows, -1, spec.head_dim) for t in (q, k, v))
            if spec.qk_norm:
                q = normalise(q, weights[part + "q_norm.weight"], spec.norm_eps)
                k = normalise(k, weights[part + "k_norm.weight"], spec.norm_eps)
            slides = layer in spec.sliding_layers
            if layer not in spec.unrotated_layers:
                rope = spec.sliding_rope if slides and spec.sliding_rope else spec.rope
                angles = rope_angles(spec, rope, spec.max_positions)[places]
                q = turn(q, rope, angles)
                k = turn(k, rope, angles)
            q = q * (1 + growth.to(q.dtype))[:, None, None]
            visible = within_window(everything, spec.window if slides else None)
            heads = []
            for head in range(num_heads):
                shared = head // (num_heads // num_kv)
                affinity = q[:, head] @ k[:, shared].T * scale
                affinity = affinity.masked_fill(~visible, -math.inf)
                if spec.attention_sinks:
                    sink = weights[part + "sinks.weight"][head].expand(len(affinity), 1)
                    affinity = torch.cat((affinity, sink), -1)
                heads.append(affinity.softmax(-1)[:, : len(k)] @ v[:, shared])
            mixed = torch.cat(heads, -1)
            if spec.gates_attention:
                mixed = mixed * linear(h, part + "attention_gate").sigmoid()
            branch = linear(mixed, part + "attention_out")
            x = add_branch(spec, weights, x, branch, part + "attention_post_norm")
        if (layer, "mlp") not in left_out:
            h = x if spec.norms == "after" else normalise(x, weights[part + "mlp_norm.weight"], spec.norm_eps)
            if spec.num_experts and layer not in spec.dense_layers:
                branch = mixture(spec, weights, h, linear, part)
                if spec.shared_size:
                    shared = linear(gated(spec, linear(h, part + "shared_gate_up")), part + "shared_out")
                    branch = branch + (linear(h, part + "shared_gate").sigmoid() if spec.gates_shared else 1) * shared
            else:
                branch = linear(gated(spec, linear(h, part + "gate_up")), part + "mlp_out")
            x = add_branch(spec, weights, x, branch, part + "mlp_post_norm")
    x = normalise(x, weights["final_norm.weight"], spec.norm_eps)
    return linear(x, "embedding" if spec.tied_embeddings else "head") / spec.logit_divisor


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
    total = sum(weights)
    before = 0.0
    kept = []
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
