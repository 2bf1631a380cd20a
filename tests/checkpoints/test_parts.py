"""A rank's part of a checkpoint is read alone, and is the same part of the weights that were read whole."""

import random
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.safetensors import reader
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import fill
from forerun.checkpoints.source import CheckpointSource
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.quantise import as_plain, dequantise
from forerun.model.slicing import take, take_bias
from forerun.model.weights import Part
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights, part_of
from tests.checkpoints.gguf.models import OF_ARCHITECTURE, write_model
from tests.checkpoints.packed import METHODS, write_packed
from tests.golden.families import FAMILIES
from tests.marks import in_turn

IN_LAYERS = ("qkv", "attention_out", "gate_up", "mlp_out")
MIXED = {"attn_v": "Q6_K", "ffn_gate": "Q5_0", "ffn_up": "F16", "ffn_down": "Q6_K", "token_embd": "Q8_0"}
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}  # multiples of a group of 32


def names_of(spec: ModelSpec) -> list[str]:
    layers = [f"layers.{layer}.{name}" for layer in range(spec.num_layers) for name in IN_LAYERS]
    return layers if spec.tied_embeddings else [*layers, "head"]


def even_model(kind: str, folder: Path) -> CheckpointSource:
    """A model whose parts begin and end with words, groups and blocks on 2 and 4 ranks, and that has no biases, which
    are read whole."""
    if kind == "gguf":
        return GgufCheckpoint(name="x", path=write_model(folder / "x.gguf", default_type="Q8_0"))
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    replace(FAMILIES["llama2"], changes={**FAMILIES["llama2"].changes, **sizes}).save(folder)
    if kind == "awq":
        write_packed(folder, load_file(folder / "model.safetensors"), "awq", group_size=32)
    return HuggingFaceFolder(name="x", folder=folder)


def part_by_hand(weight_OI: Tensor, part: Part) -> Tensor:
    if part.columns is not None:
        return take(weight_OI, [part.columns], 1)
    assert part.rows is not None
    return take(weight_OI, [piece for section in part.rows for piece in section])


def require_same_parts(source: CheckpointSource, num_ranks: int, weight_format: WeightFormat = "plain") -> None:
    spec = source.spec()
    group_size = random.Random(num_ranks).choice([1, 32])
    for plan in plan_shards(spec, num_ranks, group_size=group_size):
        whole = source.weights(dtype=torch.float32, weight_format=weight_format)
        own = ShardedWeights(source.weights(dtype=torch.float32, weight_format=weight_format), spec, plan)
        for name in (*names_of(spec), "head"):
            part = part_of(name, spec, plan)
            weight, bias = whole.linear(name)
            own_weight, own_bias = own.linear(name)
            assert torch.equal(dequantise(own_weight), part_by_hand(dequantise(weight), part)), f"{name} of {plan.rank}"
            expected = None if part.columns is not None and plan.rank else take_bias(bias, part)
            assert (own_bias is None) == (expected is None)
            assert own_bias is None or torch.equal(own_bias, expected)


@pytest.mark.parametrize(
    ("family", "weight_format"),
    in_turn(["llama2", "llama3.2", "llama_biased", "qwen2", "qwen3"], ["plain", "int8", "int4"]),
)
def test_parts_of_plain_folders(family: str, weight_format: WeightFormat, tmp_path: Path) -> None:
    FAMILIES[family].save(tmp_path)
    for num_ranks in (1, 2, 3, 6):
        require_same_parts(HuggingFaceFolder(name="x", folder=tmp_path), num_ranks, weight_format)


@pytest.mark.parametrize(("group_size", "weight_format"), in_turn([32, -1], ["plain", "int8"]))
@pytest.mark.parametrize("method", METHODS)
def test_parts_of_packed_folders(method: str, group_size: int, weight_format: WeightFormat, tmp_path: Path) -> None:
    replace(FAMILIES["qwen2"], changes={**FAMILIES["qwen2"].changes, **SIZES}).save(tmp_path)
    write_packed(tmp_path, load_file(tmp_path / "model.safetensors"), method, group_size=group_size)
    for num_ranks in (1, 2, 3, 6):
        require_same_parts(HuggingFaceFolder(name="x", folder=tmp_path), num_ranks, weight_format)


@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
@pytest.mark.parametrize("type_name", ["Q4_0", "Q6_K", "Q8_0", "F16", "mixed"])
def test_parts_of_gguf_files(architecture: str, type_name: str, tmp_path: Path) -> None:
    types, default = (MIXED, "Q4_K") if type_name == "mixed" else ({}, type_name)
    path = write_model(tmp_path / "x.gguf", architecture=architecture, types=types, default_type=default)
    for num_ranks in (1, 2, 3, 4):
        require_same_parts(GgufCheckpoint(name="x", path=path), num_ranks)


@pytest.mark.parametrize(("kind", "num_ranks"), [("plain", 4), ("awq", 4), ("gguf", 2)])
def test_no_more_than_a_part_is_read(
    kind: str, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = even_model(kind, tmp_path)
    spec = source.spec()
    num_read = 0

    def count(file: FileIO, rest: memoryview, tensor: StoredTensor, start: int) -> None:
        nonlocal num_read
        num_read += len(rest)
        fill(file, rest, tensor, start)

    monkeypatch.setattr(reader, "fill", count)
    weights = source.weights(dtype=torch.float32)
    for name in names_of(spec):
        as_plain(weights.linear(name)[0])  # codes are read when they are asked for
    num_whole = num_read
    num_read = 0
    for plan in plan_shards(spec, num_ranks, group_size=32):
        own = ShardedWeights(source.weights(dtype=torch.float32), spec, plan)
        for name in names_of(spec):
            as_plain(own.linear(name)[0])
    assert num_read == num_whole, f"{num_read} bytes by {num_ranks} ranks, {num_whole} by one"
