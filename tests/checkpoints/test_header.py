"""A damaged safetensors file is refused before any weight is read, whichever byte is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.checkpoints.safetensors.header import read_header
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import SINGLE, random_tensors, write_single

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_single(tmp_path, random_tensors()) / SINGLE


def write(path: Path, header: object, num_data_bytes: int = 8) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(num_data_bytes))
    return path


def test_an_empty_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    assert refusal(tmp_path / "x.safetensors").endswith("is empty: fetch the file again")


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_header_written_by_the_library_is_read(path: Path) -> None:
    tensors = random_tensors()
    stored = {tensor.name: tensor for tensor in read_header(path)}
    assert {name: tensor.shape for name, tensor in stored.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }


def test_every_truncation_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in (0, 1, 7, 8, 9, 100, len(whole) - 1, len(whole) // 2):
        path.write_bytes(whole[:size])
        refusal(path)


def test_no_changed_byte_of_the_header_escapes_as_another_error(tmp_path: Path) -> None:
    path = write_single(tmp_path, random_tensors(num_hidden_layers=1)) / SINGLE
    whole = path.read_bytes()
    header_bytes = int.from_bytes(whole[:8], "little")
    for idx in range(8 + header_bytes):
        damaged = bytearray(whole)
        damaged[idx] = (0x00, 0x22, 0x39, 0xFF)[idx % 4]
        path.write_bytes(damaged)
        try:
            tensors = read_header(path)
        except CheckpointError:
            continue
        assert all(tensor.offset + tensor.num_bytes <= len(whole) for tensor in tensors)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path / "absent.safetensors")


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {**GOOD["a"], **changes}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"not json", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        ({"a": 1}, "'a'"),
        (entry(dtype=None), "'a'"),
        (entry(dtype="I32"), "'a' is stored as I32"),
        (entry(shape=2), "'a'"),
        (entry(shape=[-2]), "'a'"),
        (entry(shape=[2.0]), "'a'"),
        (entry(shape=[True]), "'a'"),
        (entry(shape=[3]), "'a' of shape [3] needs 12 bytes, but has 8"),
        (entry(data_offsets=[0]), "'a'"),
        (entry(data_offsets=[8, 0]), "'a'"),
        (entry(data_offsets=[-8, 0]), "'a'"),
        (entry(data_offsets=[4, 12]), "'a' starts at byte"),
        (entry(shape=[4], data_offsets=[0, 16]), "'a' ends at byte"),
        ({**GOOD, "b": GOOD["a"]}, "'b' starts at byte"),
        ({**GOOD, "b": {"dtype": "F16", "shape": [2], "data_offsets": [4, 8]}}, "'b' starts at byte"),
    ],
)
def test_a_contradictory_header_is_refused(tmp_path: Path, header: object, words: str) -> None:
    message = refusal(write(tmp_path / "x.safetensors", header))
    assert words in message, message
