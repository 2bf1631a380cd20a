"""A DFlash, DFlash 2 or DSpark head in numpy, row by row and without a cache, from the published formulas (arXiv
2602.06036, z-lab's dflash/model.py, speculators' dspark)."""

from collections.abc import Mapping, Sequence

import numpy as np

from forerun.drafting.heads.dflash import DFlashSpec
from tests.drafting.heads.eagle_reference import Floats, LayerReference, rms


def convolved(rows: list[Floats], base: Floats, dynamic: list[Floats], group: int) -> list[Floats]:
    """base [O, H]; dynamic [O, C] of every row; nothing stands before the first row."""
    outputs = []
    for place in range(len(rows)):
        total = np.zeros_like(rows[0])
        for tap in range(len(base)):
            if place >= tap:
                total = total + (base[tap] + np.repeat(dynamic[place][tap], group)) * rows[place - tap]
        outputs.append(total)
    return outputs


def dflash_outputs(
    spec: DFlashSpec, weights: Mapping[str, Floats], root: int, root_place: int, features: Mapping[int, Floats]
) -> list[Floats]:
    """The normalised outputs of the block behind the root."""
    body = spec.body
    eps = body.norm_eps
    context = {
        place: rms(weights["fc.weight"] @ np.concatenate(list(each)), weights["hidden_norm.weight"], eps)
        for place, each in features.items()
        if place < root_place
    }
    tokens = [root, *[spec.mask_token_id] * (spec.block_size - 1)]
    streams = [weights["embed_tokens.weight"][token] * spec.embedding_scale for token in tokens]
    for idx in range(body.num_layers):
        layer = LayerReference(weights, f"layers.{idx}.", body)
        text = {place: (layer.heads("k", row, place), layer.heads("v", row, None)) for place, row in context.items()}
        x = [layer.norm("input_layernorm", stream) for stream in streams]
        for name in ("attention_conv", "mlp_conv"):
            if name == "mlp_conv":
                x = [layer.norm("post_attention_layernorm", stream) for stream in streams]
            dynamic: list[Floats] = []
            if spec.conv_kernel:
                base = weights[f"layers.{idx}.{name}.base_kernel"]
                projection = weights[f"layers.{idx}.{name}.kernel_projection.weight"]
                dynamic = [(projection @ row).reshape(2, spec.conv_kernel, -1) for row in x]
                x = convolved(x, base[0], [row[0] for row in dynamic], spec.conv_group)
            if name == "attention_conv":
                own = {
                    root_place + number: (layer.heads("k", row, root_place + number), layer.heads("v", row, None))
                    for number, row in enumerate(x)
                }
                outputs = []
                for number, row in enumerate(x):
                    place = root_place + number
                    seen = [
                        pair
                        for other, pair in {**text, **own}.items()
                        if not (spec.is_causal[idx] and other > place)
                        and (spec.windows[idx] is None or abs(other - place) < (spec.windows[idx] or 0))
                    ]
                    outputs.append(layer.attend(layer.heads("q", row, place), seen))
            else:
                outputs = [layer.mlp(row) for row in x]
            if spec.conv_kernel:
                outputs = convolved(outputs, base[1], [row[1] for row in dynamic], spec.conv_group)
            streams = [stream + output for stream, output in zip(streams, outputs, strict=True)]
    return [rms(stream, weights["norm.weight"], eps) for stream in streams]


def logits_after(
    spec: DFlashSpec, weights: Mapping[str, Floats], outputs: Sequence[Floats], depth: int, parent: int
) -> Floats:
    """Logits after a node at this depth that holds the token `parent`."""
    row = depth if spec.drafts_from_root else depth + 1
    if row >= len(outputs):
        return np.full(spec.body.vocab_size, -np.inf)
    output = outputs[row]
    logits = weights["lm_head.weight"] @ output * spec.logit_scale
    if spec.logit_cap:
        logits = spec.logit_cap * np.tanh(logits / spec.logit_cap)
    if spec.markov_rank:
        part = "markov_head."
        code = weights[part + "markov_w1.weight"][parent]
        if spec.has_markov_gate:
            score = weights[part + "gate_proj.weight"] @ np.concatenate((output, code))
            code = code / (1 + np.exp(-score - weights[part + "gate_proj.bias"]))
        logits = logits + weights[part + "markov_w2.weight"] @ code
    if not spec.pair_rank:
        return np.asarray(logits)
    part = "candidate_selector."
    scored = np.full(len(logits), -np.inf)
    asked = weights[part + "hidden_projection.weight"] @ output * weights[part + "predecessor_codebook"][parent]
    for token in np.argsort(-logits)[: spec.num_pairs]:
        scored[token] = logits[token] + asked @ weights[part + "successor_codebook"][token]
    return scored
