"""Qwen3 with experts: the published config, what is refused, and experts packed apart from each other."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from forerun.model.quantise import as_plain
from tests.checkpoints.folders import write_json
from tests.checkpoints.packed import write_packed
from tests.checkpoints.test_fp8 import config_of

# config.json of Qwen/Qwen3-30B-A3B.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
BLOCK = 128  # of FP8 scales


def write(folder: Path, **changes: Any) -> Path:
    write_json(folder / "config.json", PUBLISHED | changes)
    return folder


def test_the_published_config_is_read_in_full(tmp_path: Path) -> None:
    spec = read_model_spec(write(tmp_path))
    assert (spec.num_experts, spec.num_chosen_experts, spec.intermediate_size) == (128, 8, 768)
    assert (spec.gate, spec.qk_norm, spec.mlp_bias, spec.qkv_bias) == ("silu", True, False, False)
    assert (spec.head_dim, spec.num_kv_heads, spec.rope.theta, spec.window) == (128, 4, 1e6, None)
    assert spec.num_parameters == 30_532_122_624  # as the model's page has it


def test_qwen3_coders_keys_without_effect_are_read(tmp_path: Path) -> None:
    changes = {"shared_expert_intermediate_size": 0, "use_qk_norm": True, "rope_theta": 1e7, "qkv_bias": False}
    spec = read_model_spec(write(tmp_path, **changes, max_position_embeddings=262_144))
    assert (spec.num_experts, spec.rope.theta, spec.max_positions) == (128, 1e7, 262_144)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob is False, but must be true"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2, but must be 1"),
        ({"mlp_only_layers": [0]}, "all layers must have experts"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window is True, but must be false"),
        ({"num_experts_per_tok": 129}, "at most the 128 experts"),
    ],
)
def test_an_unsupported_value_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_model_spec(write(tmp_path, **changes))


def write_tiny(folder: Path) -> dict[str, Tensor]:
    """A folder as transformers writes it, and its tensors."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        **dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim", "vocab_size"), 64),
        "num_experts": 3, "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }  # fmt: skip
    config = transformers.Qwen3MoeConfig(**PUBLISHED | sizes)
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def to_fp8(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store linear layers in 8 bits with scales of 2; returns the values that they stand for."""
    stored = dict(tensors)
    expected = dict(tensors)
    for name in [name for name in tensors if "_proj." in name]:
        stored[name] = tensors[name].to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = torch.full([-(-size // BLOCK) for size in tensors[name].shape], 2.0)
        expected[name] = 2.0 * stored[name].float()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"quantization_config": config_of((BLOCK, BLOCK))})
    return expected


def test_gptq_may_say_by_a_rule_that_routers_are_plain(tmp_path: Path) -> None:
    tensors = write_tiny(tmp_path)
    write_packed(tmp_path, tensors, "gptq_sym", group_size=32)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["dynamic"] = {"-:.*mlp.gate$": {}}
    write_json(tmp_path / "config.json", config)
    router, _ = open_source(str(tmp_path)).weights(dtype=torch.float32).linear("layers.0.router")
    assert router.shape == (3, 64)


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq_sym"])
def test_packed_experts_are_read_one_by_one(method: str, tmp_path: Path) -> None:
    tensors = write_tiny(tmp_path)
    expected = (
        to_fp8(tmp_path, tensors) if method == "fp8" else write_packed(tmp_path, tensors, method, group_size=32)
    )  # fmt: skip
    source = open_source(str(tmp_path)).weights(dtype=torch.float32)
    part = "model.layers.0.mlp.experts.1."
    gate_up, out, router = (
        as_plain(source.linear(f"layers.0.{name}")[0]) for name in ("experts.1.gate_up", "experts.1.out", "router")
    )
    assert torch.equal(gate_up, torch.cat([expected[f"{part}{name}_proj.weight"] for name in ("gate", "up")]).float())
    assert torch.equal(out, expected[f"{part}down_proj.weight"].float())
    assert torch.equal(router, expected["model.layers.0.mlp.gate.weight"].float())
