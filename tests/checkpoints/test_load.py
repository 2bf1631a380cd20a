"""Weights are fused in the right order, and a folder that does not fit its config is refused by file and tensor."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.load import load_weights
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import INDEX, SINGLE, edit_weight_map, random_tensors, write_shards, write_single

Q_NAME = "model.layers.1.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def load(folder: Path, **options: Any) -> dict[str, Tensor]:
    return load_weights(folder, read_model_spec(folder), **{"dtype": torch.float32, **options})


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


def expected(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "final_norm.weight": tensors["model.norm.weight"],
        "head.weight": tensors["lm_head.weight"],
    }
    for idx in range(2):
        hf = f"model.layers.{idx}."
        ours = f"layers.{idx}."
        qkv = [tensors[f"{hf}self_attn.{part}_proj.weight"] for part in "qkv"]
        weights |= {
            f"{ours}attention_norm.weight": tensors[f"{hf}input_layernorm.weight"],
            f"{ours}qkv.weight": torch.cat(qkv),
            f"{ours}attention_out.weight": tensors[f"{hf}self_attn.o_proj.weight"],
            f"{ours}mlp_norm.weight": tensors[f"{hf}post_attention_layernorm.weight"],
            f"{ours}gate_up.weight": torch.cat([tensors[f"{hf}mlp.{part}_proj.weight"] for part in ("gate", "up")]),
            f"{ours}mlp_out.weight": tensors[f"{hf}mlp.down_proj.weight"],
        }
    return weights


def assert_same(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("write", [write_single, write_shards])
def test_one_file_and_many_give_the_same_fused_weights(tmp_path: Path, write: Any) -> None:
    tensors = random_tensors()
    assert_same(load(write(tmp_path, tensors)), expected(tensors))


def test_more_layers_than_stored_tensors_are_refused_before_anything_is_planned_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.checkpoints.huggingface.load.tensor_plan", lambda spec: pytest.fail("a plan was made"))
    message = refusal(write_single(tmp_path, random_tensors(), num_hidden_layers=1000))
    assert "num_hidden_layers is 1000, but the folder holds 21 tensors" in message


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_stored_dtypes_are_converted(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    tensors = random_tensors(stored)
    weights = load(write_single(tmp_path, tensors), dtype=wanted)
    assert_same(weights, {name: tensor.to(wanted) for name, tensor in expected(tensors).items()})


def test_biases_are_fused_like_their_matrices(tmp_path: Path) -> None:
    tensors = random_tensors()
    for idx in range(2):
        for part, num_rows in (("q", 8), ("k", 4), ("v", 4)):
            tensors[f"model.layers.{idx}.self_attn.{part}_proj.bias"] = torch.randn(num_rows)
    weights = load(write_single(tmp_path, tensors, model_type="qwen2"))
    parts = [tensors[f"model.layers.1.self_attn.{part}_proj.bias"] for part in "qkv"]
    assert torch.equal(weights["layers.1.qkv.bias"], torch.cat(parts))
    assert "layers.1.attention_out.bias" not in weights


@pytest.mark.parametrize("has_copy", [False, True])
def test_a_tied_model_has_no_head_whether_or_not_it_is_stored(tmp_path: Path, has_copy: bool) -> None:
    tensors = random_tensors()
    if not has_copy:
        del tensors["lm_head.weight"]
    assert "head.weight" not in load(write_single(tmp_path, tensors, tie_word_embeddings=True))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors[Q_NAME]
    message = refusal(write_single(tmp_path, tensors))
    assert repr(Q_NAME) in message
    assert str(tmp_path) in message


def test_an_extra_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors() | {"model.layers.0.self_attn.q_proj.bias": torch.ones(8)}
    message = refusal(write_single(tmp_path, tensors))
    assert str(tmp_path / SINGLE) in message
    assert "'model.layers.0.self_attn.q_proj.bias'" in message


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    message = refusal(write_single(tmp_path, random_tensors() | {Q_NAME: torch.ones(8, 4)}))
    assert str(tmp_path / SINGLE) in message
    assert f"{Q_NAME!r} has shape [8, 4]" in message
    assert "[8, 8]" in message


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin", "", None, 3]
)
def test_an_index_cannot_leave_its_folder(tmp_path: Path, shard: object) -> None:
    edit_weight_map(write_shards(tmp_path, random_tensors()), model__norm__weight=shard)
    message = refusal(tmp_path)
    assert INDEX in message
    assert "model.norm.weight" in message


def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    write_single(tmp_path, random_tensors())
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    message = refusal(tmp_path)
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_single(tmp_path, random_tensors())
    (tmp_path / SINGLE).unlink()
    assert f"{tmp_path} holds neither {SINGLE} nor {INDEX}" in refusal(tmp_path)


PEAK_PROGRAM = """
import resource, sys, torch
from pathlib import Path
from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.load import load_weights
folder = Path(sys.argv[1])
spec = read_model_spec(folder)
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
before = status("VmRSS")
weights = load_weights(folder, spec, dtype=torch.float32)
print(status("VmHWM") - before, sum(tensor.nbytes for tensor in weights.values()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_the_peak_is_the_weights_and_one_tensor(tmp_path: Path) -> None:
    tensors = random_tensors()
    vocab_size = 3_000_000
    tensors |= {name: torch.ones(vocab_size, 8) for name in (EMBEDDING, "lm_head.weight")}
    write_single(tmp_path, tensors, vocab_size=vocab_size)
    done = subprocess.run(
        [sys.executable, "-c", PEAK_PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    peak, num_bytes = map(int, done.stdout.split())
    assert num_bytes > 190e6
    assert peak <= num_bytes + 40e6
