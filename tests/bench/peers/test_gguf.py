"""Checkpoints as GGUF files: what is in them, and when they are written anew."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.peers.gguf_cache import cached_gguf, identity
from forerun.checkpoints.open import open_source
from forerun.checkpoints.safetensors.header import StoredTensor
from tests.tiny import plain_spec

gguf = pytest.importorskip("gguf")
from forerun.bench.peers.gguf_file import type_of  # noqa: E402 - needs gguf

DRAFT = open_source("builtin-draft").folder


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_a_gguf_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    assert cached_gguf(tmp_path / "x.gguf", "bfloat16", tmp_path / "cache") == tmp_path / "x.gguf"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_matrices_take_the_dtype_and_norms_stay_in_float32(dtype: str, kind: str, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(cached_gguf(DRAFT, dtype, tmp_path))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == kind
    assert kinds["blk.0.attn_norm.weight"] == kinds["output_norm.weight"] == "F32"


@pytest.mark.parametrize(("weights", "kind"), [("int8", "Q8_0"), ("int4", "Q4_0")])
def test_quantised_matrices_are_blocks_that_stand_for_the_weights(weights: str, kind: str, tmp_path: Path) -> None:
    plain, rounded = (tensors_of(cached_gguf(DRAFT, name, tmp_path)) for name in ("float32", weights))
    kinds = {name: tensor.tensor_type.name for name, tensor in rounded.items()}
    assert kinds["blk.0.attn_q.weight"] == kinds["blk.1.ffn_down.weight"] == kind
    assert kinds["token_embd.weight"] == "Q8_0", "the head too: this pair has tied embeddings"
    assert kinds["blk.0.attn_norm.weight"] == kinds["output_norm.weight"] == "F32"
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "token_embd.weight"):
        expected = gguf.quants.dequantize(plain[name].data, plain[name].tensor_type)
        found = gguf.quants.dequantize(rounded[name].data, rounded[name].tensor_type)
        off = abs(found - expected).max() / abs(expected).max()
        assert 0.0 < off < (0.01 if kinds[name] == "Q8_0" else 0.1)


def test_a_head_of_its_own_is_finer_than_the_layers_and_odd_rows_are_halves(tmp_path: Path) -> None:
    spec = plain_spec(hidden_size=64, num_heads=2, num_kv_heads=1, head_dim=32, intermediate_size=40)
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight")
    shapes = ((29, 64), (29, 64), (64, 40), (64,))
    kinds = [
        type_of(StoredTensor(path=tmp_path, name=name, dtype="F32", shape=shape, offset=0, num_bytes=0), spec, "int4")
        for name, shape in zip(names, shapes, strict=True)
    ]
    assert kinds == ["Q4_0", "Q8_0", "F16", "F32"]


def test_a_file_is_written_once_for_a_state_of_the_checkpoint(tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(DRAFT, folder)
    first = cached_gguf(folder, "float32", cache)
    written = first.stat().st_mtime_ns
    assert cached_gguf(folder, "float32", cache) == first
    assert first.stat().st_mtime_ns == written
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert cached_gguf(folder, "float32", cache) != first
    assert not list(cache.glob("*.part"))


def test_copies_in_two_places_are_two_checkpoints(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(DRAFT, tmp_path / name)
    assert identity(tmp_path / "one") != identity(tmp_path / "two")


def test_no_half_written_file_is_left(tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(DRAFT, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    from forerun.core.errors import CheckpointError

    with pytest.raises(CheckpointError):
        cached_gguf(folder, "float32", cache)
    assert list(cache.iterdir()) == []
