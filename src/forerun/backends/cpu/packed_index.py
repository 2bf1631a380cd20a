"""The index of a file with packed weights, see `packed_file`: where each linear lies, and whether it is undamaged."""

import json
import mmap
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

LINE: Final = 64
LENGTH_BYTES: Final = 8
MOST_INDEX_BYTES: Final = 1 << 24
CHECKED_BYTES: Final = 1 << 20  # at once, which stay in a core's cache between reading and adding up
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # Linux; elsewhere every start compares
CHECKED: Final = ".checked"


class Place(NamedTuple):
    """Where a linear lies in a file, and the checksum of its key and bytes, which begins with the key's."""

    start: int
    num_bytes: int
    sum: int


def read_index(memory: mmap.mmap, about: str) -> dict[str, Place]:
    """Where each linear lies, by its key.

    Raises:
        ValueError: the index is damaged or belongs to another model.
    """
    length = int.from_bytes(memory[-LENGTH_BYTES:], "little")
    end = len(memory) - LENGTH_BYTES - length
    if end < 0 or length > MOST_INDEX_BYTES:
        raise ValueError("it is damaged")
    index = json.loads(memory[end : end + length])
    if not isinstance(index, dict) or index.get("about") != about:
        raise ValueError("it belongs to another model")
    stored = index.get("places")
    if not isinstance(stored, dict) or not all(is_place(place, end) for place in stored.values()):
        raise ValueError("its index is damaged, or that of an earlier version, which had no checksums")
    return {key: Place(*place) for key, place in stored.items()}


def is_place(stored: object, end: int) -> bool:
    """Whether a value of an index is a place before `end`."""
    match stored:
        case [int(start), int(num_bytes), int()]:
            return start >= 0 and start % LINE == 0 and 0 < num_bytes <= end - start
    return False


def require_sums(file: FileIO, places: Mapping[str, Place]) -> None:
    """Read all linears, one after another, and compare their checksums.

    Raises:
        ValueError: a linear is not what was written under its key.
        OSError: the disk cannot read one. Reading a mapped page would end the process.
    """
    buffer = bytearray(CHECKED_BYTES)
    for key, place in places.items():
        found = crc32(key.encode())
        num_left = place.num_bytes
        file.seek(place.start)
        while num_left and (num_read := file.readinto(memoryview(buffer)[:num_left])):
            found = crc32(memoryview(buffer)[:num_read], found)
            num_left -= num_read
        if found != place.sum:
            raise ValueError(f"its bytes of {key} are damaged")


def is_checked(path: Path) -> bool:
    """Whether the checksums were compared since this machine was booted, and the file has not changed since then."""
    try:
        return path.with_suffix(CHECKED).read_text() == state_of(path)
    except (OSError, ValueError):
        return False


def mark_checked(path: Path) -> None:
    """Remember that the checksums were compared.

    Raises:
        OSError: this cannot be written, or the system does not name its boots.
    """
    state = state_of(path)
    if not is_checked(path):
        path.with_suffix(CHECKED).write_text(state)


def state_of(path: Path) -> str:
    """The boot, and what changes if somebody writes into the file."""
    stat = path.stat()
    return f"{BOOT.read_text().strip()} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def remove(path: Path) -> None:
    """Remove a file, and what was remembered about it."""
    path.unlink(missing_ok=True)
    path.with_suffix(CHECKED).unlink(missing_ok=True)
