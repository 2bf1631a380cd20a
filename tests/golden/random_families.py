"""Random tiny models of the newer families, built by transformers in float64, and the logits that it computes."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

Config = dict[str, Any]
OFFSET = ("Gemma3", "Qwen3_5", "Qwen3_5Moe", "Qwen3Next")  # classes whose norms multiply by 1 + w
LENGTH = 40  # tokens of a text: longer than every window


@dataclass(frozen=True, kw_only=True)
class RandomFamily:
    """How transformers builds one: the prefix of its classes, and the config's values."""

    classes: str
    draw: Callable[[random.Random], Config]
    config_class: str = ""

    def build(self, seed: int, **changes: object) -> Any:
        """A model with weights in float64, large enough that its logits differ by several units."""
        rng = random.Random(seed)
        config_class = getattr(transformers, self.config_class or f"{self.classes}Config")
        config = config_class(**{**sizes(rng), **self.draw(rng), **changes}, dtype="float64")
        config._attn_implementation = "eager" if self.classes == "GptOss" else "sdpa"  # of which it has none
        config._experts_implementation = "eager"
        model = getattr(transformers, f"{self.classes}ForCausalLM")(config).double().train(False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(-0.4, 0.6, generator=generator)
                    is_offset = self.classes in OFFSET and "linear_attn" not in name
                    weight += 0.0 if is_offset else 1.0
                else:
                    weight.normal_(0.0, 0.25, generator=generator)
            for name, buffer in model.named_buffers():
                if name.endswith(("expert_bias", "e_score_correction_bias")):
                    buffer.normal_(0.0, 0.3, generator=generator)
                if name.endswith("layer_scalar"):
                    buffer.uniform_(0.5, 1.5, generator=generator)
        return model

    def save(self, seed: int, folder: Path, **changes: object) -> Any:
        model = self.build(seed, **changes)
        model.save_pretrained(folder)
        return model


@contextmanager
def wide_norms(model: Any) -> Iterator[None]:
    """The model's norms and routers compute in float64 too; by themselves they take float32 for everything else."""
    narrow = torch.float32
    narrow_method = torch.Tensor.float

    def widen(*_: object) -> None:
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double

    def restore(*_: object) -> None:
        torch.float32 = narrow
        torch.float = narrow
        torch.Tensor.float = narrow_method

    kinds = ("RMSNorm", "Router", "DeltaNet", "MambaLayer", "Mamba2Mixer")
    norms = [module for module in model.modules() if type(module).__name__.endswith(kinds)]
    hooks = [norm.register_forward_pre_hook(widen) for norm in norms]
    hooks += [norm.register_forward_hook(restore) for norm in norms]
    try:
        yield
    finally:
        restore()
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def golden_logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    """[T, V] as transformers computes them."""
    with wide_norms(model):
        texts = torch.tensor([list(token_ids)])
        if type(model).__name__.startswith("NemotronH"):  # whose logits are rounded to float32
            logits: Tensor = model.lm_head(model.model(texts, use_cache=False).last_hidden_state)[0]
        else:
            logits = model(texts, use_cache=False).logits[0]
    return logits


def sizes(rng: random.Random) -> Config:
    num_kv_heads = rng.choice([1, 2])
    return {
        "vocab_size": rng.randint(40, 90),
        "hidden_size": 8 * rng.randint(3, 6),
        "intermediate_size": rng.choice([24, 40]),
        "num_hidden_layers": rng.randint(3, 5),
        "num_attention_heads": num_kv_heads * rng.choice([1, 2, 3]),
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": 256,
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": rng.random() < 0.5,
    }


def headed(rng: random.Random) -> Config:
    """Sizes for classes that know no head_dim."""
    num_heads = rng.choice([2, 4])
    return {
        "num_attention_heads": num_heads,
        "num_key_value_heads": rng.choice([1, 2]),
        "hidden_size": num_heads * rng.choice([8, 16]),
    }


def smollm3(rng: random.Random) -> Config:
    return {**headed(rng), "num_hidden_layers": 5, "no_rope_layer_interval": rng.choice([2, 3, 4])}


def ministral3(rng: random.Random) -> Config:
    rope = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": rng.choice([0.1, 0.5]),
    }  # fmt: skip
    return {"head_dim": rng.choice([8, 16]), "rope_parameters": rope}


def granite(rng: random.Random) -> Config:
    return {
        **headed(rng), "embedding_multiplier": rng.choice([12.0, 3.5]), "attention_multiplier": rng.choice([0.2, 0.5]),
        "residual_multiplier": rng.choice([0.22, 0.5]), "logits_scaling": rng.choice([0.5, 3.0]),
    }  # fmt: skip


def granite_hybrid(rng: random.Random) -> Config:
    config = granite(rng)
    return {
        **config, "num_hidden_layers": 3, "layer_types": ["attention"] * 3, "num_local_experts": 0,
        "shared_intermediate_size": rng.choice([24, 40]), "position_embedding_type": rng.choice(["rope", None]),
        "mamba_n_heads": 2, "mamba_expand": 2, "mamba_d_head": config["hidden_size"],
    }  # fmt: skip


def phi3(rng: random.Random) -> Config:
    config = headed(rng)
    num_pairs = config["hidden_size"] // config["num_attention_heads"] * 3 // 8
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": rng.choice([LENGTH // 2, 2 * LENGTH]),
        "short_factor": [1.0 + rng.random() for _ in range(num_pairs)],
        "long_factor": [1.0 + 8 * rng.random() for _ in range(num_pairs)],
    }  # fmt: skip
    window = rng.choice([None, 7])
    return {
        **config, "rope_parameters": rope, "sliding_window": window,
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
    }  # fmt: skip


def gemma3(rng: random.Random) -> Config:
    num_heads = rng.choice([2, 4])
    scaled = rng.choice([{"rope_type": "linear", "factor": 8.0}, {"rope_type": "default"}])
    return {
        "num_hidden_layers": 7, "num_attention_heads": num_heads, "hidden_size": 12 * num_heads,
        "head_dim": rng.choice([8, 16]), "query_pre_attn_scalar": rng.choice([8, 21]),
        "num_key_value_heads": rng.choice([1, 2]), "sliding_window": rng.choice([5, 9]),
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e5, **scaled},
            "sliding_attention": {"rope_theta": 1e3, "rope_type": "default"},
        },
    }  # fmt: skip


def gemma4(rng: random.Random) -> Config:
    num_heads = rng.choice([2, 4])
    vocab_size = rng.randint(40, 90)
    num_borrowing = rng.choice([0, 2])
    return {
        "vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size, "num_hidden_layers": 6,
        "num_attention_heads": num_heads, "hidden_size": 12 * num_heads, "head_dim": 8,
        "global_head_dim": rng.choice([16, 24]), "num_key_value_heads": 2, "num_global_key_value_heads": 1,
        "attention_k_eq_v": rng.random() < 0.6, "sliding_window": rng.choice([5, 9]),
        "hidden_size_per_layer_input": 6 if num_borrowing else rng.choice([0, 6]),  # transformers fails otherwise
        "num_kv_shared_layers": num_borrowing,
        "use_double_wide_mlp": rng.random() < 0.5, "final_logit_softcapping": rng.choice([None, 30.0]),
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    }  # fmt: skip


def olmo2(rng: random.Random) -> Config:
    return {**headed(rng), "num_key_value_heads": rng.choice([1, 2])}


def olmo3(rng: random.Random) -> Config:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "attention_factor": 1.2}
    return {
        **olmo2(rng), "num_hidden_layers": 5, "sliding_window": rng.choice([5, 9]),
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e4, **yarn},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    }  # fmt: skip


def glm4(rng: random.Random) -> Config:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    return {"head_dim": rng.choice([8, 16]), "attention_bias": rng.random() < 0.7, "rope_parameters": rope}


def mistral(rng: random.Random) -> Config:
    return {"head_dim": rng.choice([8, 16]), "sliding_window": rng.choice([5, 9, None])}


def qwen2(rng: random.Random) -> Config:
    late = {"use_sliding_window": True, "sliding_window": rng.choice([5, 9]), "max_window_layers": 2}
    return {**headed(rng), **late, "num_hidden_layers": 4}


def gpt_oss(rng: random.Random) -> Config:
    num_experts = rng.choice([5, 6, 8])
    yarn = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    return {
        "head_dim": rng.choice([8, 16]), "num_local_experts": num_experts, "sliding_window": rng.choice([5, 9]),
        "num_experts_per_tok": rng.choice([1, 2, 4]), "rope_parameters": yarn, "hidden_size": rng.choice([32, 40, 64]),
        "intermediate_size": rng.choice([32, 40, 64]),
    }  # fmt: skip


def qwen3_moe(rng: random.Random) -> Config:
    return {
        "head_dim": rng.choice([8, 16]), "num_experts": rng.choice([5, 6, 8]), "norm_topk_prob": True,
        "num_experts_per_tok": rng.choice([1, 2, 4]), "moe_intermediate_size": rng.choice([24, 32, 40]),
        "attention_bias": rng.random() < 0.3,
    }  # fmt: skip


def kinds_of_layers(rng: random.Random, mixer: str) -> list[str]:
    """At least one layer with attention and one with another mixer."""
    kinds = [mixer, "full_attention", *rng.choices([mixer, "full_attention"], k=rng.randint(1, 3))]
    rng.shuffle(kinds)
    return kinds


def qwen3_5(rng: random.Random) -> Config:
    num_key_heads = rng.choice([1, 2])
    kinds = kinds_of_layers(rng, "linear_attention")
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}
    return {
        "head_dim": rng.choice([8, 16]), "linear_num_key_heads": num_key_heads, "rope_parameters": rope,
        "linear_num_value_heads": num_key_heads * rng.choice([1, 2, 3]), "linear_key_head_dim": rng.choice([6, 8, 16]),
        "linear_value_head_dim": rng.choice([6, 8, 16]), "linear_conv_kernel_dim": rng.choice([2, 4]),
        "num_hidden_layers": len(kinds), "layer_types": kinds, "attention_bias": rng.random() < 0.3,
    }  # fmt: skip


def qwen3_next(rng: random.Random) -> Config:
    return {
        **qwen3_5(rng), "num_experts": rng.choice([5, 6, 8]), "num_experts_per_tok": rng.choice([1, 2, 4]),
        "moe_intermediate_size": rng.choice([24, 32]), "shared_expert_intermediate_size": rng.choice([16, 20]),
    }  # fmt: skip


def lfm2(rng: random.Random) -> Config:
    kinds = kinds_of_layers(rng, "conv")
    adjusts = rng.random() < 0.5
    return {
        **headed(rng), "num_hidden_layers": len(kinds), "conv_L_cache": rng.choice([2, 3, 4]),
        "conv_bias": rng.random() < 0.5, "block_auto_adjust_ff_dim": adjusts, "block_multiple_of": rng.choice([4, 8]),
        "block_ffn_dim_multiplier": rng.choice([1.0, 1.3]), "norm_eps": rng.choice([1e-5, 1e-6]),
        **({"layer_types": kinds} if rng.random() < 0.7 else {"full_attn_idxs": [1]}),
    }  # fmt: skip


def lfm2_moe(rng: random.Random) -> Config:
    kinds = kinds_of_layers(rng, "conv")
    return {
        **headed(rng), "num_hidden_layers": len(kinds), "layer_types": kinds, "conv_L_cache": rng.choice([2, 3, 4]),
        "conv_bias": rng.random() < 0.5, "norm_eps": rng.choice([1e-5, 1e-6]), "num_experts": rng.choice([5, 6, 8]),
        "num_experts_per_tok": rng.choice([1, 2, 4]), "moe_intermediate_size": rng.choice([24, 32]),
        "num_dense_layers": rng.choice([0, 1, 2]), "use_expert_bias": rng.random() < 0.7,
        "norm_topk_prob": rng.random() < 0.7, "routed_scaling_factor": rng.choice([1.0, 2.5]),
    }  # fmt: skip


def granite_mamba(rng: random.Random) -> Config:
    config = granite(rng)
    kinds = kinds_of_layers(rng, "linear_attention")
    num_groups = rng.choice([1, 2])
    num_heads = num_groups * rng.choice([1, 2])
    return {
        **config, "num_hidden_layers": len(kinds), "layer_types": kinds, "num_local_experts": rng.choice([0, 5, 8]),
        "num_experts_per_tok": rng.choice([1, 2, 4]), "shared_intermediate_size": rng.choice([20, 24]),
        "position_embedding_type": rng.choice(["rope", None]), "mamba_n_heads": num_heads, "mamba_expand": 2,
        "mamba_d_head": 2 * config["hidden_size"] // num_heads, "mamba_d_state": rng.choice([6, 8, 16]),
        "mamba_n_groups": num_groups, "mamba_d_conv": rng.choice([2, 4]), "mamba_conv_bias": rng.random() < 0.7,
        "mamba_proj_bias": rng.random() < 0.3, "mamba_chunk_size": rng.choice([16, 256]),
        "time_step_limit": rng.choice([(0.0, float("inf")), (0.5, 1.5)]),
    }  # fmt: skip


def nemotron_h(rng: random.Random) -> Config:
    num_groups = rng.choice([1, 2])
    kinds = ["linear_attention", "full_attention", rng.choice(["mlp", "moe"])]
    kinds += rng.choices(["linear_attention", "full_attention", "mlp", "moe"], k=rng.randint(0, 3))
    rng.shuffle(kinds)
    is_dense = "moe" not in kinds
    return {
        "layers_block_type": kinds, "head_dim": rng.choice([8, 16]), "n_groups": num_groups,
        "layer_norm_epsilon": rng.choice([1e-5, 1e-6]), "mamba_num_heads": num_groups * rng.choice([1, 2, 3]),
        "mamba_head_dim": rng.choice([6, 8]), "ssm_state_size": rng.choice([6, 8, 16]),
        "conv_kernel": rng.choice([2, 4]), "use_bias": rng.random() < 0.3, "chunk_size": rng.choice([16, 128]),
        "mlp_bias": is_dense and rng.random() < 0.3, "use_conv_bias": rng.random() < 0.7,
        "n_routed_experts": rng.choice([5, 6, 8]), "num_experts_per_tok": rng.choice([1, 2, 4]),
        "moe_intermediate_size": rng.choice([20, 24]), "moe_shared_expert_intermediate_size": rng.choice([20, 28]),
        "norm_topk_prob": rng.random() < 0.7,
        "routed_scaling_factor": rng.choice([1.0, 2.5]), "time_step_min": 1e-30,  # a limit in prompts alone
        "num_hidden_layers": None, "rms_norm_eps": None, "tie_word_embeddings": False,
    }  # fmt: skip


FAMILIES: dict[str, RandomFamily] = {
    "smollm3": RandomFamily(classes="SmolLM3", draw=smollm3),
    "ministral3": RandomFamily(classes="Ministral3", draw=ministral3),
    "granite": RandomFamily(classes="Granite", draw=granite),
    "granite_hybrid": RandomFamily(classes="GraniteMoeHybrid", draw=granite_hybrid),
    "phi3": RandomFamily(classes="Phi3", draw=phi3),
    "gemma3": RandomFamily(classes="Gemma3", draw=gemma3, config_class="Gemma3TextConfig"),
    "gemma4": RandomFamily(classes="Gemma4", draw=gemma4, config_class="Gemma4TextConfig"),
    "olmo2": RandomFamily(classes="Olmo2", draw=olmo2),
    "olmo3": RandomFamily(classes="Olmo3", draw=olmo3),
    "glm4": RandomFamily(classes="Glm4", draw=glm4),
    "gpt_oss": RandomFamily(classes="GptOss", draw=gpt_oss),
    "qwen3_moe": RandomFamily(classes="Qwen3Moe", draw=qwen3_moe),
    "mistral": RandomFamily(classes="Mistral", draw=mistral),
    "qwen2": RandomFamily(classes="Qwen2", draw=qwen2),
    "qwen3_5": RandomFamily(classes="Qwen3_5", draw=qwen3_5, config_class="Qwen3_5TextConfig"),
    "qwen3_next": RandomFamily(classes="Qwen3Next", draw=qwen3_next),
    "qwen3_5_moe": RandomFamily(classes="Qwen3_5Moe", draw=qwen3_next, config_class="Qwen3_5MoeTextConfig"),
    "lfm2": RandomFamily(classes="Lfm2", draw=lfm2),
    "lfm2_moe": RandomFamily(classes="Lfm2Moe", draw=lfm2_moe),
    "granite_mamba": RandomFamily(classes="GraniteMoeHybrid", draw=granite_mamba),
    "nemotron_h": RandomFamily(classes="NemotronH", draw=nemotron_h),
}
