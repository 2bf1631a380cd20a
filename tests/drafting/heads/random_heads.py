"""Random draft heads for tiny targets, in float64, by their published names."""

import random
from collections.abc import Mapping

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.dflash_network import DFlashHead
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import TorchEagleHead
from forerun.drafting.heads.layer import HeadWeights, embedding

CAPACITY = 160


def eagle_head(spec: EagleSpec, tensors: Mapping[str, Tensor]) -> TorchEagleHead:
    """A head that is alone."""
    weights = HeadWeights(tensors)
    return TorchEagleHead(spec, weights, embedding(weights["embed_tokens.weight"]), weights.linear("lm_head"))


def dflash_head(spec: DFlashSpec, tensors: Mapping[str, Tensor]) -> DFlashHead:
    """A head that is alone."""
    weights = HeadWeights(tensors)
    return DFlashHead(spec, weights, embedding(weights["embed_tokens.weight"]), weights.linear("lm_head"))


def random_body(rng: random.Random, **changes: object) -> ModelSpec:
    num_kv_heads = rng.choice([1, 2, 3])
    fields: dict[str, object] = {
        "family": "llama",
        "num_layers": rng.choice([1, 1, 2, 3]),
        "hidden_size": rng.choice([8, 12, 20]),
        "num_heads": num_kv_heads * rng.choice([1, 2, 3]),
        "num_kv_heads": num_kv_heads,
        "head_dim": rng.choice([2, 4, 6]),
        "intermediate_size": rng.choice([7, 16]),
        "vocab_size": rng.randint(5, 29),
        "max_positions": CAPACITY,
        "norm_eps": 1e-5,
        "qkv_bias": rng.random() < 0.3,
        "qk_norm": rng.random() < 0.3,
        "rope": RopeSpec(theta=rng.choice([100.0, 10_000.0])),
    }
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int, gain: float = 1.5) -> dict[str, Tensor]:
    """Norms near 1, matrices that keep the size of what they multiply."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_norm = "norm" in name
        tensors[name] = 0.75 + 0.1 * tensor if is_norm else tensor * gain / (shape[-1] ** 0.5 if len(shape) > 1 else 3)
    return tensors


def layer_shapes(body: ModelSpec, part: str, num_in: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer whose attention reads `num_in` features."""
    hidden = body.hidden_size
    inner = body.intermediate_size
    sizes = {"q": body.q_size}
    sizes |= dict.fromkeys("kv", body.kv_size)
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **{f"self_attn.{name}_proj.weight": (size, num_in) for name, size in sizes.items()},
        "self_attn.o_proj.weight": (hidden, body.q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if body.qkv_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    if body.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (body.head_dim,) for name in "qk"}
    return {part + name: shape for name, shape in shapes.items()}


def random_eagle(rng: random.Random, target: ModelSpec, **changes: object) -> EagleSpec:
    """A head of any options for this target, whose embedding it may share only at the same size."""
    fields: dict[str, object] = {
        "body": random_body(rng),
        "target_hidden_size": target.hidden_size,
        "num_taps": rng.randint(1, 4),
        "norms_residual": rng.random() < 0.5,
        "norms_logits": rng.random() < 0.8,
        "norms_state": rng.random() < 0.5,
    }
    fields["layer_ids"] = tuple(rng.randint(1, target.num_layers) for _ in range(int(str(fields["num_taps"]))))
    fields[rng.choice(["norms_each", "norms_all", "norms_residual"])] = True
    return EagleSpec(**{**fields, **changes})  # type: ignore[arg-type]


def eagle_tensors(spec: EagleSpec, target: ModelSpec, seed: int, *, is_alone: bool = True) -> dict[str, Tensor]:
    """Its weights, with an embedding and an output of its own if it `is_alone`."""
    body = spec.body
    width = spec.num_taps * spec.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (body.hidden_size, width), "norm.weight": (body.hidden_size,)}
    shapes |= layer_shapes(body, "layers.0.", 2 * body.hidden_size)
    shapes["layers.0.hidden_norm.weight"] = (body.hidden_size,)
    for idx in range(1, body.num_layers):
        shapes |= layer_shapes(body, f"layers.{idx}.", body.hidden_size)
    if spec.norms_each:
        shapes |= {f"fc_norm.{idx}.weight": (spec.target_hidden_size,) for idx in range(spec.num_taps)}
    if spec.norms_all:
        shapes["input_norm.weight"] = (width,)
    if is_alone:
        shapes["embed_tokens.weight"] = (target.vocab_size, body.hidden_size)
        shapes["lm_head.weight"] = (body.vocab_size, body.hidden_size)
    return random_tensors(shapes, seed)


def random_dflash(rng: random.Random, target: ModelSpec, **changes: object) -> DFlashSpec:
    """A DFlash, DFlash 2 or DSpark head of any options for this target."""
    body = random_body(rng, vocab_size=target.vocab_size)
    group = rng.choice([2, 4])
    fields: dict[str, object] = {
        "body": body,
        "target_hidden_size": target.hidden_size,
        "layer_ids": tuple(rng.randrange(target.num_layers) for _ in range(rng.randint(1, 4))),
        "block_size": rng.randint(2, 6),
        "mask_token_id": rng.randrange(target.vocab_size),
        "windows": tuple(rng.choice([None, None, 3, 8]) for _ in range(body.num_layers)),
        "is_causal": tuple(rng.random() < 0.3 for _ in range(body.num_layers)),
    }
    if rng.random() < 0.4:
        fields |= {"embedding_scale": 1.5, "logit_scale": 0.75, "logit_cap": 3.0}
    kind = rng.choice(["dflash", "dflash", "dflash2", "dflash2", "dspark"])
    if kind == "dflash2":
        fields |= {"conv_kernel": rng.randint(1, 3), "conv_group": group, "pair_rank": 4, "num_pairs": 3}
    if kind == "dspark":
        fields |= {"markov_rank": 4, "has_markov_gate": rng.random() < 0.5}
    fields["drafts_from_root"] = rng.random() < (0.8 if kind == "dspark" else 0.2)
    fields |= changes
    if fields.get("pair_rank") or not fields.get("markov_rank"):
        fields |= {"markov_rank": 0, "has_markov_gate": False}
    return DFlashSpec(**fields)  # type: ignore[arg-type]


def dflash_tensors(spec: DFlashSpec, target: ModelSpec, seed: int, *, is_alone: bool = True) -> dict[str, Tensor]:
    """Its weights, with an embedding and an output of its own if it `is_alone`."""
    body = spec.body
    hidden = body.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, spec.num_taps * spec.target_hidden_size)}
    shapes |= dict.fromkeys(("norm.weight", "hidden_norm.weight"), (hidden,))
    for idx in range(body.num_layers):
        shapes |= layer_shapes(body, f"layers.{idx}.", hidden)
        for name in ("attention_conv", "mlp_conv") if spec.conv_kernel else ():
            shapes[f"layers.{idx}.{name}.base_kernel"] = (2, spec.conv_kernel, hidden)
            num_rows = 2 * spec.conv_kernel * hidden // spec.conv_group
            shapes[f"layers.{idx}.{name}.kernel_projection.weight"] = (num_rows, hidden)
    if spec.pair_rank:
        shapes["candidate_selector.hidden_projection.weight"] = (spec.pair_rank, hidden)
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector.{name}_codebook"] = (target.vocab_size, spec.pair_rank)
    if spec.markov_rank:
        shapes["markov_head.markov_w1.weight"] = (target.vocab_size, spec.markov_rank)
        shapes["markov_head.markov_w2.weight"] = (body.vocab_size, spec.markov_rank)
    if spec.has_markov_gate:
        shapes["markov_head.gate_proj.weight"] = (spec.markov_rank, hidden + spec.markov_rank)
        shapes["markov_head.gate_proj.bias"] = (spec.markov_rank,)
    if is_alone:
        shapes |= dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (target.vocab_size, hidden))
    return random_tensors(shapes, seed)
