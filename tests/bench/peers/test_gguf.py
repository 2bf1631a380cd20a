"""Checkpoints as GGUF files: what is in them, and when they are written anew."""

import os
import shutil
from pathlib import Path

import pytest

from forerun.bench.peers.gguf_cache import cached_gguf, identity
from forerun.checkpoints.locate import locate

gguf = pytest.importorskip("gguf")
DRAFT = locate("builtin-draft")


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_matrices_take_the_dtype_and_norms_stay_in_float32(dtype: str, kind: str, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(cached_gguf(DRAFT, dtype, tmp_path))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == kind
    assert kinds["blk.0.attn_norm.weight"] == kinds["output_norm.weight"] == "F32"


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
