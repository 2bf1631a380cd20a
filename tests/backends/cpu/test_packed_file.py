"""Packed codes in a file: mapped at the next start, and whole or not there whatever happens in between."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from ctypes import string_at
from pathlib import Path
from threading import enumerate as all_threads
from typing import Any, Final

import pytest
import torch

from forerun.backends.backend import KeptWeights
from forerun.backends.cpu import packed_file, packed_index
from forerun.backends.cpu.binding import fault
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.packed_file import PackedFile, open_packed
from forerun.backends.cpu.packed_index import LENGTH_BYTES
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from tests.checkpoints.gguf.models import write_model

pytestmark = [
    pytest.mark.skipif(fault() is not None, reason=str(fault())),
    pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept there"),
]

LINEARS: Final = ("head", "layers.0.qkv", "layers.0.gate_up", "layers.0.mlp_out", "layers.0.attention_out")


@pytest.fixture(autouse=True)
def keep_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "LEAST_BYTES", 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    types = {"attn_v": "Q6_K", "token_embd": "Q8_0"}  # q, k and v are two parts, one below the other
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(path, architecture="qwen2", types=types, default_type="Q4_K")


def kept_in(folder: Path, about: str = "m", *, is_whole: bool = True, num_bytes: int = 1 << 20) -> KeptWeights:
    return KeptWeights(folder=folder, name="m", about=about, num_bytes=num_bytes, is_whole=is_whole)


def pack_all(model: Path, file: PackedFile | None) -> list[bytes]:
    """The packed bytes of all linears, read once the file is finished."""
    weights = GgufCheckpoint(name="m", path=model).weights(dtype=torch.float32)
    linears = list[PackedLinear]()
    for name in LINEARS:
        weight, bias_O = weights.linear(name)
        paired = weight.shape[0] // 2 if name.endswith("gate_up") else 0
        linears.append(PackedLinear.pack(weight, bias_O, paired=paired, name=name, file=file))
    if file is not None:
        file.finish()
        wait_for_files()
    parts = [part for linear in linears for part in linear.parts()]
    return [string_at(part.descriptor.weights, part.num_bytes) for part in parts]


def wait_for_files() -> None:
    for thread in all_threads():
        if thread.name == "forerun keeps packed weights":
            thread.join()


def packed_in(folder: Path) -> list[Path]:
    """The files of packed weights; beside them lies nothing but what was remembered about them."""
    assert {path.suffix for path in folder.iterdir()} <= {".packed", ".checked"}
    return sorted(folder.glob("*.packed"))


def test_the_next_start_maps_what_was_packed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = pack_all(model, None)
    assert pack_all(model, open_packed(kept_in(tmp_path / "new"))) == expected
    (path,) = packed_in(tmp_path / "new")
    assert sum(map(len, expected)) < path.stat().st_size < 1.3 * sum(map(len, expected))
    monkeypatch.setattr(packed_file, "rows_packed", lambda *_: pytest.fail("packed again"))
    file = open_packed(kept_in(tmp_path / "new", is_whole=False))
    packed_file.remove(path)  # as another process may, to make room
    assert pack_all(model, file) == expected
    assert not caplog.records


def test_nothing_is_kept_of_a_part_of_a_model_or_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_packed(kept_in(tmp_path, is_whole=False)) is None
    monkeypatch.setattr(packed_file, "LEAST_BYTES", 2 << 20)
    assert open_packed(kept_in(tmp_path)) is None
    assert open_packed(None) is None
    assert not list(tmp_path.iterdir())


def forge_index(raw: bytes, change: Callable[[Any], object]) -> bytes:
    """The file with another index."""
    length = int.from_bytes(raw[-LENGTH_BYTES:], "little")
    index = json.loads(raw[-LENGTH_BYTES - length : -LENGTH_BYTES])
    change(index)
    text = json.dumps(index).encode()
    return raw[: -LENGTH_BYTES - length] + text + len(text).to_bytes(LENGTH_BYTES, "little")


def forge_place(raw: bytes, *place: object) -> bytes:
    return forge_index(raw, lambda index: index["places"].update({next(iter(index["places"])): list(place)}))


def flipped(raw: bytes, share: float) -> bytes:
    """One bit of the packed weights flipped."""
    length = int.from_bytes(raw[-LENGTH_BYTES:], "little")
    places = json.loads(raw[-LENGTH_BYTES - length : -LENGTH_BYTES])["places"].values()
    start, num_bytes, _ = sorted(places)[int(share * (len(places) - 1))]
    bit = start + int(share * (num_bytes - 1))
    return raw[:bit] + bytes([raw[bit] ^ 4]) + raw[bit + 1 :]


def swapped(index: Any, num_parts: int) -> None:
    """The places of two linears exchanged, with their sizes and checksums or without."""
    first, second = list(index["places"].values())[:2]
    first[:num_parts], second[:num_parts] = second[:num_parts], first[:num_parts]


DAMAGES: Final = {
    "empty": lambda raw: b"",
    "shorter": lambda raw: raw[:-100],
    "few bytes": lambda raw: raw[:3],
    "zeros": lambda raw: bytes(len(raw)),
    "an index that is none": lambda raw: raw[:-20] + b"\xff" * 12 + raw[-8:],
    "a length beyond the file": lambda raw: raw[:-8] + (1 << 62).to_bytes(8, "little"),
    "another model's": lambda raw: forge_index(raw, lambda index: index.update(about="another")),
    "places outside": lambda raw: forge_place(raw, 1 << 40, 64, 0),
    "places below 0": lambda raw: forge_place(raw, -64, 64, 0),
    "places between": lambda raw: forge_place(raw, 7, 64, 0),
    "no size": lambda raw: forge_place(raw, 0, 0, 0),
    "no places": lambda raw: forge_index(raw, lambda index: index.update(places=None)),
    "an earlier version's": lambda raw: forge_index(
        raw, lambda index: index.update(places={key: place[0] for key, place in index["places"].items()})
    ),
    "another size": lambda raw: forge_index(
        raw, lambda index: [place.__setitem__(1, place[1] - 64) for place in index["places"].values()]
    ),
    "the first bit": lambda raw: flipped(raw, 0.0),
    "a bit in the middle": lambda raw: flipped(raw, 0.5),
    "the last bit": lambda raw: flipped(raw, 1.0),
    "places swapped": lambda raw: forge_index(raw, lambda index: swapped(index, 1)),
    "names swapped": lambda raw: forge_index(raw, lambda index: swapped(index, 3)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_left_aside_and_made_anew(
    damage: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = pack_all(model, open_packed(kept_in(tmp_path)))
    assert pack_all(model, open_packed(kept_in(tmp_path))) == expected, "and its checksums have been compared"
    (path,) = packed_in(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    with caplog.at_level(logging.WARNING, logger="forerun"):
        assert pack_all(model, open_packed(kept_in(tmp_path))) == expected
    assert str(path) in caplog.text
    assert len(caplog.records) == 1
    assert path.read_bytes() == whole
    assert pack_all(model, open_packed(kept_in(tmp_path))) == expected
    assert len(caplog.records) == 1


def test_checksums_are_compared_once_a_boot(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compared = list[int]()
    plain = packed_file.require_sums
    boot = tmp_path / "boot"
    monkeypatch.setattr(packed_file, "require_sums", lambda *given: compared.append(1) or plain(*given))
    monkeypatch.setattr(packed_index, "BOOT", boot)
    folder = tmp_path / "packed"
    expected = pack_all(model, open_packed(kept_in(folder)))
    for name, num_compared in (("first", 1), ("first", 1), ("second", 2), ("second", 2), ("", 3), ("", 4)):
        boot.write_text(name) if name else boot.unlink(missing_ok=True)  # a system that names no boots
        assert pack_all(model, open_packed(kept_in(folder))) == expected
        assert len(compared) == num_compared, name
    assert not caplog.records


def test_damage_before_a_boot_is_found_after_it_though_no_time_has_changed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    folder = tmp_path / "packed"
    monkeypatch.setattr(packed_index, "BOOT", boot)
    boot.write_text("first")
    expected = [pack_all(model, open_packed(kept_in(folder))) for _ in range(2)][1]
    (path,) = packed_in(folder)
    stat = path.stat()
    with path.open("r+b") as file:
        file.write(flipped(path.read_bytes(), 0.5))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    boot.write_text("second")
    assert pack_all(model, open_packed(kept_in(folder))) == expected


@pytest.mark.parametrize("place", ["a file", "read-only", "too little room"])
def test_a_place_that_takes_no_file_is_said_once(
    place: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "packed"
    kept = kept_in(tmp_path / "packed")
    if place == "a file":
        folder.touch()
    elif place == "read-only":
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        folder.mkdir(mode=0o500)
    else:
        kept = kept_in(folder, num_bytes=1 << 50)
    with caplog.at_level(logging.WARNING, logger="forerun"):
        assert pack_all(model, open_packed(kept)) == pack_all(model, None)
    assert len(caplog.records) == 1
    assert "--pack-in-memory" in caplog.text


def test_what_cannot_be_written_is_packed_in_memory(model: Path, tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a linear."""
    resource = pytest.importorskip("resource")
    expected = pack_all(model, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, limit in (("room", 2 << 20), ("full", sum(map(len, expected)) // 2)):  # what the file may grow to
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            assert pack_all(model, open_packed(kept_in(tmp_path / name))) == expected
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "room").glob("*.packed"))
    assert not list((tmp_path / "full").glob("*.packed"))


BUSY: Final = """
import sys, time
from pathlib import Path
from forerun.backends.cpu import packed_file
from tests.backends.cpu import test_packed_file as tests
packed_file.LEAST_BYTES = 0
packed_file.GrowingFile._write_slowly = lambda self: time.sleep(600)
tests.wait_for_files = lambda: None
tests.pack_all(Path(sys.argv[1]), packed_file.open_packed(tests.kept_in(Path(sys.argv[2]))))
"""


@pytest.mark.slow
def test_a_process_that_ends_writes_the_rest_itself(model: Path, tmp_path: Path) -> None:
    """Where other programs leave the background thread no time."""
    subprocess.run([sys.executable, "-c", BUSY, str(model), str(tmp_path)], check=True)
    expected = pack_all(model, None)
    assert open_packed(kept_in(tmp_path, is_whole=False)) is not None
    assert pack_all(model, open_packed(kept_in(tmp_path, is_whole=False))) == expected


FORKED: Final = """
import os, sys, time
from pathlib import Path
from forerun.backends.cpu import packed_file
from tests.backends.cpu import test_packed_file as tests
packed_file.LEAST_BYTES, packed_file.PIECE_BYTES = 0, 1000
tests.wait_for_files = lambda: None
put = packed_file.GrowingFile._put
packed_file.GrowingFile._put = lambda self, data: (time.sleep(0.001), put(self, data))
tests.pack_all(Path(sys.argv[1]), packed_file.open_packed(tests.kept_in(Path(sys.argv[2]))))
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_leaves_the_file_to_its_parent(model: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(model), str(tmp_path)], check=True)
    assert pack_all(model, open_packed(kept_in(tmp_path, is_whole=False))) == pack_all(model, None)
    assert len(packed_in(tmp_path)) == 1


def test_what_was_unused_longest_makes_room(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for about in ("a", "b", "c"):
        pack_all(model, open_packed(kept_in(tmp_path, about)))
    for age, path in enumerate(packed_in(tmp_path)):
        os.utime(path, (age, age))
    oldest, *others = packed_in(tmp_path)
    monkeypatch.setattr(packed_file, "MOST_BYTES", sum(path.stat().st_size for path in others) + (1 << 20))
    file = open_packed(kept_in(tmp_path, "d"))
    assert not oldest.exists()
    assert all(path.exists() for path in others)
    pack_all(model, file)
