"""Every type of every architecture has the values that ggml's own package reads, rows in the order of training."""

from pathlib import Path

import pytest
import torch

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.header import BLOCK_SIZES
from forerun.core.errors import CheckpointError
from forerun.model.quantise import as_plain, dequantise, quantise
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight, WeightSource
from tests.checkpoints.gguf.models import HEADS, KV_HEADS, OF_ARCHITECTURE, values_of, write_model

MIXED = {"attn_v": "Q6_K", "ffn_gate": "Q5_0", "ffn_up": "F16", "ffn_down": "Q6_K", "token_embd": "Q8_0"}


def weights_of(path: Path, **options: object) -> WeightSource:
    return GgufCheckpoint(name="x", path=path).weights(**{"dtype": torch.float32, **options})  # type: ignore[arg-type]


def trained(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows as llama.cpp's converter found them: its own `permute` undone."""
    halves = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def fused(values: dict[str, torch.Tensor], suffix: str, *, architecture: str) -> torch.Tensor:
    q, k, v = (values[f"blk.0.attn_{part}.{suffix}"] for part in "qkv")
    if architecture == "llama":
        q = trained(q, HEADS)
        k = trained(k, KV_HEADS)
    return torch.cat((q, k, v))


@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
@pytest.mark.parametrize("type_name", [*(name for name in BLOCK_SIZES if name not in ("I32", "I64")), "mixed"])
def test_weights_are_those_that_the_package_dequantises(architecture: str, type_name: str, tmp_path: Path) -> None:
    types, default = (MIXED, "Q4_K") if type_name == "mixed" else ({}, type_name)
    path = write_model(tmp_path / "x.gguf", architecture=architecture, types=types, default_type=default)
    values = values_of(path)
    weights = weights_of(path)
    qkv, bias = weights.linear("layers.0.qkv")
    assert torch.equal(dequantise(qkv), fused(values, "weight", architecture=architecture))
    assert (bias is not None) == (architecture == "qwen2")
    if bias is not None:
        assert torch.equal(bias, fused(values, "bias", architecture=architecture))
    gate_up = torch.cat((values["blk.0.ffn_gate.weight"], values["blk.0.ffn_up.weight"]))
    assert torch.equal(dequantise(weights.linear("layers.0.gate_up")[0]), gate_up)
    for name, stored in (("attention_out", "attn_output"), ("mlp_out", "ffn_down")):
        assert torch.equal(dequantise(weights.linear(f"layers.0.{name}")[0]), values[f"blk.0.{stored}.weight"])
    assert torch.equal(dequantise(weights.table()), values["token_embd.weight"])
    assert weights.linear("head")[0] is weights.table()
    for name, stored in (("final_norm", "output_norm"), ("layers.0.mlp_norm", "blk.0.ffn_norm")):
        assert torch.equal(weights.vector(name), values[f"{stored}.weight"])


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    path = write_model(tmp_path / "x.gguf", types={"blk.0.ffn_up": "I32"}, default_type="F32")
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ffn_up\.weight' is stored as I32, whole numbers"):
        weights_of(path)


def test_codes_stay_packed_and_unequal_formats_are_stacked(tmp_path: Path) -> None:
    weights = weights_of(write_model(tmp_path / "x.gguf", types=MIXED, default_type="Q4_K"), dtype=torch.bfloat16)
    qkv = weights.linear("layers.0.qkv")[0]
    gate_up = weights.linear("layers.0.gate_up")[0]
    assert isinstance(qkv, StackedWeight)
    assert [(part.shape[0], getattr(part, "block_type", None)) for part in qkv.parts] == [(384, "Q4_K"), (128, "Q6_K")]
    assert isinstance(gate_up, StackedWeight)
    assert isinstance(gate_up.parts[1], DenseWeight)
    assert gate_up.parts[1].dtype is torch.bfloat16
    table = weights.table()
    assert isinstance(table, BlockWeight)
    assert (table.block_type, table.dtype) == ("Q8_0", torch.bfloat16)


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_other_formats_are_rounded_from_the_values_of_the_codes(weight_format: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "x.gguf", types=MIXED, default_type="Q4_K")
    plain = weights_of(path)
    rounded = weights_of(path, weight_format=weight_format)
    for name in ("layers.0.qkv", "layers.0.mlp_out"):
        expected = quantise(as_plain(plain.linear(name)[0]), weight_format)  # type: ignore[arg-type]
        assert torch.equal(dequantise(rounded.linear(name)[0]), dequantise(expected))
    head = quantise(dequantise(plain.table()), "int8")  # the head's format beside either
    assert torch.equal(dequantise(rounded.linear("head")[0]), dequantise(head))


def test_a_head_of_its_own_and_biases_of_llama_are_read(tmp_path: Path) -> None:
    shapes = {"output.weight": (40, 256), "blk.0.attn_q.bias": (256,)}
    shapes |= {f"blk.0.attn_{part}.bias": (128,) for part in "kv"}
    path = write_model(tmp_path / "x.gguf", shapes=shapes)
    values = values_of(path)
    weights = weights_of(path)
    assert torch.equal(dequantise(weights.linear("head")[0]), values["output.weight"])
    bias = weights.linear("layers.0.qkv")[1]
    assert bias is not None
    assert torch.equal(bias, fused(values, "bias", architecture="llama"))


@pytest.mark.parametrize(
    ("shapes", "seen"),
    [
        ({"blk.0.ffn_up.weight": None}, "lacks tensor 'blk.0.ffn_up.weight': fetch"),
        ({"blk.0.extra.weight": (256,)}, "holds tensor 'blk.0.extra.weight', which forerun does not support"),
        ({"blk.0.attn_k.weight": (64, 256)}, "'blk.0.attn_k.weight' has shape [64, 256], but"),
        ({"output_norm.weight": (1, 256)}, "'output_norm.weight' has shape [1, 256], but"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    shapes: dict[str, tuple[int, ...] | None], seen: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "x.gguf", shapes=shapes)
    with pytest.raises(CheckpointError) as caught:
        weights_of(path)
    assert seen in str(caught.value)
    assert str(path) in str(caught.value)
