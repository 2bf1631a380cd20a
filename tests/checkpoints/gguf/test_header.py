"""A GGUF file's header is read as the format's own package reads it, or refused by key or tensor."""

from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any, Final

import gguf
import numpy as np
import pytest

from forerun.checkpoints.gguf.bounded_reader import MAX_HELD_BYTES
from forerun.checkpoints.gguf.header import read_gguf
from forerun.core.errors import CheckpointError

MAGIC: Final = b"GGUF" + pack("<I", 3)


def write(path: Path, add: Callable[[Any], None]) -> Path:
    """A file by the format's own package, with one tensor of 2 by 4 numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    add(writer)
    writer.add_tensor("weight", np.arange(8, dtype=np.float32).reshape(2, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def number_key(name: bytes, value: int, type_code: int = 4) -> bytes:
    return text(name) + pack("<II", type_code, value)


def tensor(name: bytes, *, shape: tuple[int, ...] = (8,), type_code: int = 0, offset: int = 0) -> bytes:
    return text(name) + pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_code, offset)


def forged(path: Path, *, keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), num_bytes: int = 0) -> Path:
    head = MAGIC + pack("<QQ", len(tensors), len(keys)) + b"".join((*keys, *tensors))
    path.write_bytes(head + bytes(-len(head) % 32 + num_bytes))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_values_of_every_type_and_arrays_are_those_that_were_written(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        for name, value in (("uint8", 200), ("int8", -3), ("uint16", 60000), ("int16", -300), ("uint32", 2**31)):
            getattr(writer, f"add_{name}")(name, value)
        for name, value in (("int32", -(2**31)), ("uint64", 2**63), ("int64", -(2**63))):
            getattr(writer, f"add_{name}")(name, value)
        writer.add_float32("float32", 0.5)
        writer.add_float64("float64", 0.1)
        writer.add_bool("bool", True)
        writer.add_string("text", "naïve 🙂")
        writer.add_array("texts", ["a", "", "Ġthe"])
        writer.add_array("numbers", [1, -2, 3])
        writer.add_array("floats", [0.5, -1.0])
        writer.add_array("flags", [True, False])

    assert read_gguf(write(tmp_path / "x.gguf", add)).metadata == {
        "general.architecture": "llama",
        "uint8": 200,
        "int8": -3,
        "uint16": 60000,
        "int16": -300,
        "uint32": 2**31,
        "int32": -(2**31),
        "uint64": 2**63,
        "int64": -(2**63),
        "float32": 0.5,
        "float64": 0.1,
        "bool": True,
        "text": "naïve 🙂",
        "texts": ("a", "", "Ġthe"),
        "numbers": (1, -2, 3),
        "floats": (0.5, -1.0),
        "flags": (True, False),
    }


@pytest.mark.parametrize("alignment", [8, 32, 128])
def test_a_tensor_lies_where_the_package_finds_it_whatever_the_alignment(alignment: int, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", lambda writer: writer.add_custom_alignment(alignment))
    found = read_gguf(path).tensors["weight"]
    reference = gguf.GGUFReader(path).tensors[0]
    assert (found.offset, found.num_bytes) == (reference.data_offset, reference.n_bytes)
    assert (found.shape, found.dtype) == ((2, 4), "F32")


def test_files_that_are_no_gguf_of_a_known_version_are_refused_by_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content, seen in (
        (b"", "needs 4 bytes"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"GGUF" + pack("<I", 1) + bytes(40), "of version 1"),
        (b"GGUF" + pack(">I", 3) + bytes(40), "big-endian"),
    ):
        path.write_bytes(content)
        assert seen in refusal(path)
    path.unlink()
    assert "cannot be read" in refusal(path)


def test_every_beginning_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.gguf", lambda writer: writer.add_array("texts", ["a", "b"])).read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in range(0, end - 1, 3):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        refusal(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        ((number_key(b"a", 1), number_key(b"a", 1)), "holds the key 'a' twice"),
        ((number_key(b"a", 1, type_code=13),), "value of 'a' has type 13"),
        ((number_key(b"general.alignment", 48),), "general.alignment is 48"),
        ((number_key(b"general.alignment", 0),), "general.alignment is 0"),
        ((text(b"a") + pack("<IIQ", 9, 9, 1),), "'a' is an array of arrays"),
        ((text(b"a") + pack("<IIQ", 9, 8, 2**60),), "value of 'a' needs 9223372036854775808 bytes"),
        ((text(b"a") + pack("<IIQ", 9, 4, 2**62),), "value of 'a' needs 18446744073709551616 bytes"),
        ((text(b"a") + pack("<IQ", 8, 2**64 - 1),), "value of 'a' ends at byte 18446744073709551"),
        ((text(b"a") + pack("<I", 8) + text(b"\xff"),), "value of 'a' holds text that is not UTF-8"),
    ],
)
def test_a_damaged_value_is_refused_by_its_key(keys: tuple[bytes, ...], seen: str, tmp_path: Path) -> None:
    assert seen in refusal(forged(tmp_path / "x.gguf", keys=keys))


@pytest.mark.parametrize(
    ("tensors", "seen"),
    [
        ((tensor(b"t"), tensor(b"t", offset=32)), "holds tensor 't' twice"),
        ((tensor(b"t"), tensor(b"u")), "tensor 'u' starts at byte 96, and must start at a multiple of 32 from 128 on"),
        ((tensor(b"t", offset=8),), "tensor 't' starts at byte 72"),
        ((tensor(b"t", offset=2**63),), "tensor 't' ends at byte 9223372036854775904"),
        ((tensor(b"t", shape=(9,) * 5),), "tensor 't' has 5 dimensions"),
        ((tensor(b"t", shape=()),), "tensor 't' has 0 dimensions"),
        ((tensor(b"t", shape=(0, 4)),), "tensor 't' of shape [4, 0]"),
        ((tensor(b"t", shape=(2**63, 2**63)),), "tensor 't' of shape"),
        ((tensor(b"t", shape=(40,), type_code=2),), "tensor 't' of shape [40] cannot be stored in blocks of 32"),
        ((tensor(b"t", shape=(256,), type_code=16),), "tensor 't' is stored as IQ2_XXS, but must be one of F32, F16"),
        ((tensor(b"t", type_code=999),), "tensor 't' is stored as type 999"),
    ],
)
def test_a_damaged_tensor_is_refused_by_its_name(tensors: tuple[bytes, ...], seen: str, tmp_path: Path) -> None:
    assert seen in refusal(forged(tmp_path / "x.gguf", tensors=tensors, num_bytes=64))


def test_texts_that_would_take_much_more_memory_than_any_vocabulary_are_refused(tmp_path: Path) -> None:
    num_empty = MAX_HELD_BYTES // 64
    many = text(b"many") + pack("<IIQ", 9, 8, num_empty) + bytes(8 * num_empty)
    assert "'many' its metadata takes more than" in refusal(forged(tmp_path / "many.gguf", keys=(many,)))
    wide = text(b"wide") + pack("<I", 8) + text("🙂".encode() + b"a" * (MAX_HELD_BYTES // 4))
    assert "'wide' its metadata takes more than" in refusal(forged(tmp_path / "wide.gguf", keys=(wide,)))
    numbers = text(b"numbers") + pack("<IIQ", 9, 6, MAX_HELD_BYTES // 32) + bytes(MAX_HELD_BYTES // 8)
    assert "'numbers' its metadata takes more than" in refusal(forged(tmp_path / "numbers.gguf", keys=(numbers,)))


def test_the_largest_published_vocabulary_is_read(tmp_path: Path) -> None:
    """Gemma 4's: 262,144 tokens with scores and types, and 514,906 merges, of the mean length of its texts."""
    num_tokens = 262_144
    num_merges = 514_906
    token = pack("<Q", 8) + b"aaaaaaaa"
    merge = pack("<Q", 12) + "\u2581ab".encode() + b" cdefgh"
    keys = (
        text(b"tokens") + pack("<IIQ", 9, 8, num_tokens) + token * num_tokens,
        text(b"scores") + pack("<IIQ", 9, 6, num_tokens) + bytes(4 * num_tokens),
        text(b"types") + pack("<IIQ", 9, 5, num_tokens) + bytes(4 * num_tokens),
        text(b"merges") + pack("<IIQ", 9, 8, num_merges) + merge * num_merges,
    )
    assert len(read_gguf(forged(tmp_path / "large.gguf", keys=keys)).metadata) >= 4
