"""Random tiny architectures with the mechanisms of the newer families, their windows shorter than the tests' texts."""

import random
from math import inf

from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec, RopeSpec, SigmoidRouting
from tests.tiny import tiny_spec

Values = dict[str, object]
FAMILIES = (
    "mistral", "smollm3", "ministral3", "granite", "phi3", "gemma3_text", "olmo2", "olmo3", "glm4", "gpt_oss",
    "qwen3_moe", "qwen3_5_text", "qwen3_next", "lfm2", "lfm2_moe", "granitemoehybrid", "nemotron_h",
)  # fmt: skip
TORCH_ONLY = ("lfm2_moe", "granitemoehybrid", "nemotron_h")  # torch's kernels alone run them
MIXED = ("qwen3_5_text", "qwen3_next", "lfm2", *TORCH_ONLY)  # have layers without attention
UNSHARED = ("gpt_oss", "qwen3_moe", *MIXED)  # cannot be divided among ranks


def family_spec(rng: random.Random, family: str, **changes: object) -> ModelSpec:
    """An architecture of at least three layers; `changes` fixes fields."""
    num_layers = rng.randint(3, 4)
    values = {"family": family, "num_layers": num_layers, "head_dim": 8, "qk_norm": False, **changes}
    if family.startswith("lfm2"):  # whose convolutions have as many channels
        values.setdefault("hidden_size", rng.choice([8, 12, 20]))
    return tiny_spec(rng, **{**values, **values_of(rng, family, int(str(values["num_layers"])), values)})


def values_of(rng: random.Random, family: str, num_layers: int, values: Values) -> Values:
    window = rng.choice([2, 3, 5, 9])
    scale = rng.choice([0.2, 0.5, 1.0])
    match family:
        case "mistral":
            return {"window": window, "sliding_layers": tuple(range(num_layers))}
        case "smollm3":
            return {"unrotated_layers": (1,)}
        case "ministral3":
            return {"rope": RopeSpec(theta=100.0, query_growth=0.5, original_max_positions=6)}
        case "granite":
            return {"attention_scale": scale, "embedding_scale": 12.0, "logit_divisor": 0.5, "norm_eps": 2e-4}
        case "phi3":
            divisors = (1.0, 1.5, 2.0)
            rope = RopeSpec(kind="longrope", divisors=divisors, attention_factor=1.2, rotated_dims=6)
            return {"rope": rope, "window": window, "sliding_layers": (0, 1)}
        case "gemma3_text":
            return {
                "norms": "around", "wide_norms": True, "gate": "gelu_tanh", "embedding_scale": 4.5, "qk_norm": True,
                "rounds_embedding_scale": True, "attention_scale": scale, "window": window, "sliding_layers": (0, 2),
                "sliding_rope": RopeSpec(theta=50.0), "rope": RopeSpec(theta=100.0, kind="linear", factor=4.0),
            }  # fmt: skip
        case "olmo2":
            return {"norms": "after", "wide_norms": True, "qk_norm_whole": True}
        case "olmo3":
            yarn = RopeSpec(theta=100.0, kind="yarn", factor=8.0, original_max_positions=16, attention_factor=1.2)
            return {
                **values_of(rng, "olmo2", num_layers, values), "window": window, "sliding_layers": (0, 1), "rope": yarn,
                "sliding_rope": RopeSpec(theta=100.0),
            }  # fmt: skip
        case "gemma4_text":
            full = RopeSpec(theta=100.0, kind="proportional", rotated_dims=4)
            borrowed = rng.choice([0, 1])
            return {
                **values_of(rng, "gemma3_text", num_layers, values), "attention_scale": 1.0, "value_norm": True,
                "layer_scale": True, "logit_cap": 3.0, "rope": full, "full_head_dim": 12, "full_num_kv_heads": 1,
                "sliding_layers": tuple(range(num_layers - 2)) if borrowed else (0, 2),
                "num_borrowing_layers": borrowed, "has_wide_borrowers": rng.random() < 0.5,
                "layer_input_size": rng.choice([0, 6]),
            }  # fmt: skip
        case "gpt_oss":
            yarn = RopeSpec(
                theta=100.0, kind="yarn", factor=8.0, original_max_positions=16, attention_factor=1.2, truncate=False
            )  # fmt: skip
            return {
                "attention_sinks": True, "gate": "clamped", "wide_norms": True, "num_experts": 5, "mlp_bias": True,
                "num_chosen_experts": rng.choice([1, 2, 4]), "rope": yarn, "window": window, "sliding_layers": (0, 2),
            }  # fmt: skip
        case "qwen3_moe":
            return {"qk_norm": True, "num_experts": 5, "num_chosen_experts": rng.choice([1, 2, 4])}
        case "qwen3_5_text":
            num_key_heads = rng.choice([1, 2])
            net = GatedDeltaNet(
                num_key_heads=num_key_heads, num_value_heads=num_key_heads * rng.choice([1, 2, 3]),
                key_dim=rng.choice([4, 6, 8]), value_dim=rng.choice([4, 6, 8]), kernel_size=rng.choice([2, 4]),
                has_tiled_keys=rng.random() < 0.5, stride=rng.choice([2, 4, 8]), lag=rng.choice([12, 14]),
            )  # fmt: skip
            return {
                "qk_norm": True, "gates_attention": True, "delta_net": net, "wide_norms": True, "out_bias": False,
                "mixer_layers": rng.choice([(0, 1), (0, 2), (1, 2)]), "rope": RopeSpec(theta=100.0, rotated_dims=4),
            }  # fmt: skip
        case "qwen3_next":
            return {
                **values_of(rng, "qwen3_5_text", num_layers, values), **values_of(rng, "qwen3_moe", num_layers, values),
                "shared_size": rng.choice([6, 10]), "mlp_bias": False,
            }  # fmt: skip
        case "lfm2":
            convolution = ShortConvolution(
                num_channels=int(str(values["hidden_size"])), kernel_size=rng.choice([2, 3, 4]),
                has_bias=rng.random() < 0.5,
            )  # fmt: skip
            return {
                "qk_norm": True, "convolution": convolution, "mixer_layers": rng.choice([(0, 1), (0, 2), (1, 2), (1,)]),
                "qkv_bias": False, "out_bias": False,
            }  # fmt: skip
        case "lfm2_moe":
            dense = rng.choice([0, 1, 2])
            return {
                **values_of(rng, "lfm2", num_layers, values), "num_experts": 5, "mlp_bias": False,
                "num_chosen_experts": rng.choice([1, 2, 4]), "dense_layers": tuple(range(dense)), "dense_size": 14,
                "routing": SigmoidRouting(has_correction=rng.random() < 0.7, eps=1e-6),
            }  # fmt: skip
        case "granitemoehybrid":
            experts = {
                "num_experts": 5, "num_chosen_experts": rng.choice([1, 2, 4]), "shared_size": rng.choice([6, 10]),
                "gates_shared": False, "mlp_bias": False,
            }  # fmt: skip
            return {
                **values_of(rng, "granite", num_layers, values), **(experts if rng.random() < 0.5 else {}),
                "mamba": mamba(rng), "mixer_layers": rng.choice([(0, 1), (0, 2), (1, 2)]),
                "unrotated_layers": tuple(range(num_layers)) if rng.random() < 0.7 else (), "out_bias": False,
                "mlp_bias": False, "qk_norm": False,
            }  # fmt: skip
        case "nemotron_h":
            experts = {
                "num_experts": 5, "num_chosen_experts": rng.choice([1, 2, 4]), "shared_size": rng.choice([6, 10]),
                "gates_shared": False, "dense_size": 14,
                "routing": SigmoidRouting(is_normalised=rng.random() < 0.7, eps=1e-20, scale=rng.choice([1.0, 2.5])),
            }  # fmt: skip
            kinds = rng.choice(["M-*", "-M*", "*M-"]) + "".join(rng.choices("M-*", k=num_layers - 3))
            layers = {
                kind: tuple(layer for layer in range(num_layers) if kinds[layer] in kind) for kind in ("M", "M*", "-")
            }
            experts["dense_layers"] = layers["-"][:1] if rng.random() < 0.3 else ()
            return {
                **(experts if rng.random() < 0.5 else {}), "mamba": mamba(rng), "mixer_layers": layers["M"],
                "mixer_only": layers["M*"], "mlp_only": layers["-"], "unrotated_layers": tuple(range(num_layers)),
                "gate": "relu2", "wide_norms": True, "mlp_bias": False, "qkv_bias": False, "out_bias": False,
            }  # fmt: skip
        case "glm4":
            return {"norms": "around", "rope": RopeSpec(theta=100.0, rotated_dims=4)}
        case _:
            raise AssertionError(family)


def mamba(rng: random.Random) -> Mamba2:
    num_groups = rng.choice([1, 2])
    return Mamba2(
        num_key_heads=num_groups, num_value_heads=num_groups * rng.choice([1, 2, 3]), key_dim=rng.choice([4, 6, 8]),
        value_dim=rng.choice([4, 6, 8]), kernel_size=rng.choice([2, 4]), norm_eps=1e-5, has_bias=rng.random() < 0.7,
        step_limits=rng.choice([(0.0, inf), (0.3, 1.1)]), stride=rng.choice([2, 4, 8]), lag=rng.choice([12, 14]),
    )  # fmt: skip
