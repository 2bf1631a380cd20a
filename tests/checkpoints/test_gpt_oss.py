"""gpt-oss: its published config, its stop tokens, and what is refused."""

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.experts import ExpertWeights
from forerun.checkpoints.huggingface.generation import read_stop_ids
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.core.errors import CheckpointError, ConfigError
from forerun_lab.cli.prepare import prepare_ranks
from tests.checkpoints.folders import write_json

# config.json of openai/gpt-oss-20b.
PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
TINY = {
    "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "vocab_size": 20, "num_local_experts": 2, "num_experts_per_tok": 1,
    "experts_per_token": 1, "layer_types": ["sliding_attention"],
}  # fmt: skip
EXPERTS = "model.layers.0.mlp.experts."


def write(folder: Path, **changes: Any) -> Path:
    write_json(folder / "config.json", PUBLISHED | changes)
    return folder


def write_tiny(folder: Path) -> dict[str, torch.Tensor]:
    """A folder with experts in MXFP4, and its tensors."""
    spec = read_model_spec(write(folder, **TINY))
    tensors = {
        name: torch.ones(place.shape, dtype=torch.bfloat16)
        for name, place in tensor_plan(spec).items()
        if ".experts." not in name
    }
    for name, num_out in (("gate_up_proj", 64), ("down_proj", 32)):
        tensors[f"{EXPERTS}{name}_blocks"] = torch.full((2, num_out, 1, 16), 0x21, dtype=torch.uint8)
        tensors[f"{EXPERTS}{name}_scales"] = torch.full((2, num_out, 1), 127, dtype=torch.uint8)
        tensors[f"{EXPERTS}{name}_bias"] = torch.arange(2 * num_out).view(2, num_out).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_the_published_config_is_read_in_full(tmp_path: Path) -> None:
    spec = read_model_spec(write(tmp_path))
    assert (spec.num_experts, spec.num_chosen_experts, spec.intermediate_size) == (32, 4, 2880)
    assert (spec.gate, spec.attention_sinks, spec.wide_norms) == ("clamped", True, True)
    assert (spec.qkv_bias, spec.out_bias, spec.mlp_bias, spec.tied_embeddings) == (True, True, True, False)
    assert (spec.window, spec.sliding_layers) == (128, tuple(range(0, 24, 2)))
    assert (spec.rope.kind, spec.rope.truncate, spec.rope.theta, spec.rope.factor) == ("yarn", False, 150_000.0, 32.0)
    assert spec.rope.attention_factor == pytest.approx(0.1 * log(32) + 1)
    assert spec.num_parameters == 20_914_757_184  # as the model's page has it


def test_layers_alternate_without_a_list(tmp_path: Path) -> None:
    assert read_model_spec(write(tmp_path, layer_types=None)).sliding_layers == tuple(range(0, 24, 2))


def test_its_three_stop_tokens_are_those_of_the_generation_config(tmp_path: Path) -> None:
    write_json(write(tmp_path) / "generation_config.json", {"eos_token_id": [200002, 199999, 200012]})
    assert read_stop_ids(tmp_path) == (200002, 199999, 200012)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit is 5.0, but must be 7.0"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0, but must be 1.702"),
        ({"experts_per_token": 33}, "at most the 32 experts"),
        ({"num_local_experts": 100_000}, "num_local_experts"),
    ],
)
def test_an_unsupported_value_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_model_spec(write(tmp_path, **changes))


def test_experts_are_read_one_by_one_with_gate_above_up(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    source = open_source(str(tmp_path))
    assert source.stored_formats()["MXFP4"] == 2 * (64 + 32) * 17
    assert source.stored_dtype() == "bfloat16"
    done: list[tuple[int, int]] = []
    weights = ExpertWeights(
        tmp_path, source.spec(), dtype=torch.float32, on_progress=lambda read, total: done.append((read, total))
    )
    weight, bias = weights.linear("layers.0.experts.1.gate_up")
    assert weight.shape == (64, 32)
    assert bias is not None
    assert bias.tolist() == [*range(64, 128, 2), *range(65, 128, 2)]
    assert done[-1][0] == 64 * 17 + 64 * 2


def test_what_a_folder_lacks_or_holds_besides_is_named(tmp_path: Path) -> None:
    tensors = write_tiny(tmp_path)
    spec = read_model_spec(tmp_path)
    scales = f"{EXPERTS}down_proj_scales"
    save_file({name: tensor for name, tensor in tensors.items() if name != scales}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lack tensor 'model.layers\.0\.mlp\.experts\.down_proj_scales'"):
        ExpertWeights(tmp_path, spec, dtype=torch.float32)
    save_file({**tensors, scales: tensors[scales][:, :4].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has shape \[2, 4, 1\]"):
        ExpertWeights(tmp_path, spec, dtype=torch.float32)
    save_file({**tensors, scales: torch.full_like(tensors[scales], 255)}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"'model\.layers\.0\.mlp\.experts\.down_proj_scales' holds a scale that is NaN"
    ):
        ExpertWeights(tmp_path, spec, dtype=torch.float32).linear("layers.0.experts.0.out")


def test_mxfp4_of_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", config | {"model_type": "llama", "layer_types": None})
    source = open_source(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"quantization_config\.quant_method is 'mxfp4'"):
        source.weights(dtype=torch.float32)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_experts_are_not_prepared_for_ranks(num_ranks: int, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    config = EngineConfig(target=str(tmp_path), target_ranks=num_ranks)
    with pytest.raises(ConfigError, match="which has experts, cannot be shared by several ranks"):
        prepare_ranks(config, tmp_path / "prepared", is_packed=False, calib=None)
