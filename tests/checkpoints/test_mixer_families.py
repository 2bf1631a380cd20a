"""Qwen3.5, Qwen3-Next and LFM2: wrappers with other parts, stacked experts, and values that are refused by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from forerun.model.runner import Runner

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES

TEXT = list(range(1, 13))
EXPERT = re.compile(r"(.+\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")
Tensors = dict[str, Tensor]


def logits_of(folder: Path) -> Tensor:
    source = open_source(str(folder))
    weights = source.weights(dtype=torch.float64)
    runner = Runner(source.spec(), weights, backend=REFERENCE, capacity=16, dtype=torch.float64, device="cpu")
    return runner.extend(TEXT, num_logit_rows=len(TEXT))


def wrapped(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As the models with vision are stored, with a draft head."""
    inside = {name.replace("model.", "model.language_model.", 1): values for name, values in tensors.items()}
    others = {"model.visual.patch_embed.proj.weight": torch.ones(2, 2), "mtp.fc.weight": torch.ones(4, 8)}
    return inside | others, {"model_type": "qwen3_5", "text_config": config, "vision_config": {"depth": 1}}


def stacked(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """With one tensor for a weight of all experts of a layer, gate and up together."""
    kept = {name: values for name, values in tensors.items() if EXPERT.fullmatch(name) is None}
    for prefix in sorted({match[1] for match in map(EXPERT.fullmatch, tensors) if match}):
        weights = {
            kind: torch.stack(
                [tensors[f"{prefix}{expert}.{kind}_proj.weight"] for expert in range(config["num_experts"])]
            )
            for kind in ("gate", "up", "down")
        }  # fmt: skip
        kept[f"{prefix}gate_up_proj"] = torch.cat((weights["gate"], weights["up"]), 1)
        kept[f"{prefix}down_proj"] = weights["down"]
    return kept, config


@pytest.mark.parametrize(
    ("family", "change"), [("qwen3_5", wrapped), ("qwen3_5_moe", stacked), ("qwen3_next", stacked)]
)
def test_another_way_to_store_a_model_gives_the_same_logits(
    family: str, change: Callable[[Tensors, dict[str, Any]], tuple[Tensors, dict[str, Any]]], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    FAMILIES[family].save(3, plain)
    tensors, config = change(load_file(plain / "model.safetensors"), json.loads((plain / "config.json").read_text()))
    other = tmp_path / "other"
    other.mkdir()
    save_file({name: values.contiguous() for name, values in tensors.items()}, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits_of(plain), logits_of(other))


QWEN = {"model_type": "qwen3_5_text", "num_hidden_layers": 4}
NETS = "a list of 4 entries, not all of which are 'linear_attention'"
LFM = {"model_type": "lfm2", "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (QWEN | {"layer_types": ["linear_attention"] * 3}, NETS),
        (QWEN | {"layer_types": ["linear_attention"] * 4}, NETS),
        (QWEN | {"full_attention_interval": 5}, NETS),
        (QWEN | {"layer_types": ["mamba"] * 4}, "a list of 'full_attention' and 'linear_attention'"),
        (QWEN | {"linear_num_value_heads": 40}, "linear_num_value_heads is 40, but must be a multiple"),
        (QWEN | {"linear_num_key_heads": 2**20}, "a whole number from 1 to 1024"),
        (QWEN | {"num_attention_heads": 2**20}, "num_attention_heads is 1048576, but must be a"),
        (QWEN | {"linear_conv_kernel_dim": 99}, "linear_conv_kernel_dim is 99, but must be a whole"),
        (QWEN | {"model_type": "qwen3_next", "norm_topk_prob": False}, "norm_topk_prob is False, but must be true"),
        (QWEN | {"model_type": "qwen3_next", "mlp_only_layers": [1]}, "all layers must have experts"),
        (LFM | {"layer_types": ["conv", "full_attention"]}, "a list of 3 entries, not all of which are 'conv'"),
        (LFM | {"full_attn_idxs": []}, "a list of 3 entries, not all of which are 'conv'"),
        (LFM | {"full_attn_idxs": [3]}, "full_attn_idxs is [3], but must be a list of numbers below the 3 layers"),
        (LFM | {"conv_L_cache": 17}, "conv_L_cache is 17, but must be a whole number from 1 to 16"),
    ],
)  # fmt: skip
def test_an_unsupported_value_is_named(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=re.escape(words)):
        read_model_spec(tmp_path)


def test_every_fourth_layer_has_attention_unless_a_config_says_otherwise(tmp_path: Path) -> None:
    for config, expected in ((QWEN, (0, 1, 2)), (QWEN | {"full_attention_interval": 2}, (0, 2)), (LFM, ())):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert read_model_spec(tmp_path).mixer_layers == expected
