"""Weights of a GGUF file packed straight from it: the same bytes as from memory, on any number of threads."""

from collections.abc import Iterator
from ctypes import string_at
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.binding import fault
from forerun.backends.cpu.linear import PackedLinear
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.core.errors import CheckpointError
from forerun.model.gguf_block_types import BLOCKS
from forerun.model.weights import BlockWeight, StackedWeight, Weight
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from tests.checkpoints.gguf.models import write_model

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))

LINEARS: Final = ("head", "layers.0.qkv", "layers.0.gate_up", "layers.0.mlp_out", "layers.0.attention_out")
MIXED: Final = {"attn_v": "Q6_K", "ffn_gate": "Q5_0", "ffn_down": "Q6_K", "token_embd": "Q8_0"}


@pytest.fixture(params=(1, 3))
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    usual = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(usual)


def parts_of(weight: Weight) -> list[BlockWeight]:
    parts = weight.parts if isinstance(weight, StackedWeight) else (weight,)
    return [part for part in parts if isinstance(part, BlockWeight)]


def packed_bytes(weight: Weight, bias_O: Tensor | None, paired: int) -> list[bytes]:
    linear = PackedLinear.pack(weight, bias_O, paired=paired)
    return [string_at(part.descriptor.weights, part.num_bytes) for part in linear.parts()]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # neighbours rotate together in the files of the first
@pytest.mark.parametrize("kind", [*BLOCKS, "mixed"])
def test_bytes_are_those_of_blocks_in_memory(architecture: str, kind: str, num_threads: int, tmp_path: Path) -> None:
    types, default = (MIXED, "Q4_K") if kind == "mixed" else ({"token_embd": kind}, kind)
    path = write_model(tmp_path / "m.gguf", architecture=architecture, types=types, default_type=default)
    checkpoint = GgufCheckpoint(name="m", path=path)
    spec = checkpoint.spec()
    whole = [checkpoint.weights(dtype=torch.float32) for _ in range(2)]
    plans = plan_shards(spec, 2, group_size=256)
    shards = [[ShardedWeights(checkpoint.weights(dtype=torch.float32), spec, plan) for _ in range(2)] for plan in plans]
    num_from_file = 0
    for by_file, by_memory in (whole, *shards):
        for name in LINEARS:
            weight, bias_O = by_file.linear(name)
            same, _ = by_memory.linear(name)
            paired = 0 if not name.endswith("gate_up") or isinstance(weight, StackedWeight) else weight.shape[0] // 2
            num_from_file += any(part.rows is not None for part in parts_of(weight))
            assert all(len(part.blocks_OB) for part in parts_of(same)), "read into memory"
            assert packed_bytes(weight, bias_O, paired) == packed_bytes(same, bias_O, paired), name
    assert num_from_file >= len(LINEARS), "nothing was packed from the file"


@pytest.mark.parametrize("fault", ["shorter", "gone"])
def test_a_file_that_changes_is_an_error(fault: str, num_threads: int, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types={"token_embd": "Q8_0"}, default_type="Q4_K")
    weight, bias_O = GgufCheckpoint(name="m", path=path).weights(dtype=torch.float32).linear("layers.0.mlp_out")
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        PackedLinear.pack(weight, bias_O)
