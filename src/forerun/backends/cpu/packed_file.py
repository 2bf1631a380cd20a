"""A file with a model's packed weights. Later starts map it into memory instead of packing the weights again.

The packed linears are stored one after another, each aligned to 64 bytes. After them comes a JSON index with the key,
offset, size and checksum of each linear and the facts that the file depends on; the last 8 bytes are the length of the
index. A file gets its final name only when all of it is on disk, so it is never incomplete. It has only block-quantized
linears.

The checksums are compared before the first use after a boot, when reading the file from the disk takes as long anyway,
and whenever the file's size or time has changed. Beside the file lies one with the boot, size and time of the last
comparison.
"""

import atexit
import json
import logging
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ctypes import byref, c_char
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from tempfile import mkstemp
from threading import Lock, Thread, get_native_id
from typing import Final, Protocol, TypeAlias
from zlib import crc32

import numpy as np

from forerun.backends.backend import KeptWeights
from forerun.backends.cpu.binding import VERSION, library
from forerun.backends.cpu.layouts import NativeLinear, Source
from forerun.backends.cpu.packed_index import (
    LENGTH_BYTES,
    LINE,
    Place,
    is_checked,
    mark_checked,
    read_index,
    remove,
    require_sums,
)
from forerun.core.disk_room import free_bytes, gigabytes
from forerun.core.locks import LOCK_NAME, held, lock
from forerun.core.output_file import synchronise
from forerun.core.threads import kernel_threads
from forerun.model.weights import RowsInFile

logger = logging.getLogger(__name__)

LEAST_BYTES: Final = 32 << 20  # of a model; packing a smaller one takes almost no time
MOST_BYTES: Final = 32 << 30  # of all files together
DIGEST_BYTES: Final = 8
MOST_GROWTH: Final = 2  # packed size at most, as a multiple of the stored size
PIECE_BYTES: Final = 8 << 20
SUFFIX: Final = ".packed"
PART: Final = ".part-"


class Packed(Protocol):
    """A packed linear."""

    descriptor: NativeLinear
    num_bytes: int


class MappedFile:
    """A complete and undamaged file, mapped into memory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or of another model or an earlier version.
    """

    def __init__(self, path: Path, about: str) -> None:
        with path.open("rb", buffering=0) as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._places = read_index(self.memory, about)
            if not is_checked(path):
                require_sums(file, self._places)
        self._address = address_of(self.memory)
        if hasattr(mmap, "MADV_WILLNEED"):
            self.memory.madvise(mmap.MADV_WILLNEED)
        with suppress(OSError):
            os.utime(path)  # the least recently used files are removed first
            mark_checked(path)

    def lay_out(self, key: str, descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
        """Point a linear at its bytes in this file; returns their number, or 0 if they are not in it."""
        place = self._places.get(key)
        has_bias = int(source.bias is not None)
        if place is None:
            return 0
        num_bytes = int(library().forerun_place(byref(descriptor), self._address + place.start, has_bias))
        if num_bytes != place.num_bytes:
            return 0
        rows.tell()
        return num_bytes

    def keep(self, key: str, linear: Packed) -> None:
        """Does nothing: the linear is already in the file."""

    def finish(self) -> None:
        """Does nothing."""


class GrowingFile:
    """A new file: linears are packed in memory and then written to the file in the background.

    Written sequentially in long pieces, so that the page cache uses large pages. With 4 KiB pages a pass of one row of
    a 1.5B model took 1.18 times as long.
    """

    memory: Final = None  # each linear owns its memory

    def __init__(self, path: Path, kept: KeptWeights, about: str) -> None:
        self._path = path
        self._about = about
        self._name = kept.name
        self._linears = dict[str, Packed]()  # kept alive until they are written
        self._owner = os.getpid()
        descriptor, part = mkstemp(prefix=PART, dir=path.parent)
        self._file = FileIO(descriptor, "wb")
        self._part = Path(part)
        self._lock = ExitStack()
        try:
            self._lock = lock(lock_of(self._part))
        except OSError:
            self._leave()
            raise

    def lay_out(self, key: str, descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
        """Pack a linear in memory; returns its size, or 0 if its rows cannot be read from their file."""
        return max(0, rows_packed(descriptor, source, rows))

    def keep(self, key: str, linear: Packed) -> None:
        """Add a packed linear to those to be written."""
        self._linears[key] = linear

    def finish(self) -> None:
        """Write all linears in a background thread and then give the file its final name."""
        if self._linears:
            self._steps = self._write()
            self._turn = Lock()
            self._is_ending = False
            Thread(target=self._write_slowly, name="forerun keeps packed weights", daemon=True).start()
            atexit.register(self._write_rest)
        else:
            self._leave()

    def _write_slowly(self) -> None:
        if sys.platform == "linux":  # where this lowers the priority of this thread only, so passes stay fast
            os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)
        is_left = True
        while is_left and not self._is_ending:
            is_left = self._step()
        if not is_left:
            atexit.unregister(self._write_rest)

    def _write_rest(self) -> None:
        """Write what is left; a process that ends does so at its own priority, since it has nothing else to do."""
        if os.getpid() != self._owner:
            return
        self._is_ending = True
        while self._step():
            pass

    def _step(self) -> bool:
        """Write a piece; False if nothing was left."""
        with self._turn:
            return next(self._steps, False)

    def _write(self) -> Iterator[bool]:
        """Write the file, a piece at a time."""
        try:
            places = dict[str, Place]()
            for key, linear in self._linears.items():
                self._put(bytes(-self._file.tell() % LINE))
                begin = self._file.tell()
                found = crc32(key.encode())
                whole = memoryview((c_char * linear.num_bytes).from_address(linear.descriptor.weights)).cast("B")
                for start in range(0, len(whole), PIECE_BYTES):
                    piece = whole[start : start + PIECE_BYTES]
                    found = crc32(piece, found)
                    self._put(piece)
                    yield True
                places[key] = Place(begin, linear.num_bytes, found)
            index = json.dumps({"about": self._about, "places": places}).encode()
            self._put(index + len(index).to_bytes(LENGTH_BYTES, "little"))
            os.fsync(self._file.fileno())
            self._part.replace(self._path)
            synchronise(self._path.parent)
        except OSError as error:
            say_not_kept(self._name, self._path.parent, str(error.strerror))
        finally:
            self._linears = {}
            self._leave()

    def _put(self, data: bytes | memoryview) -> None:
        """Write all of it. Nothing stays in a buffer, which a forked process would write once more."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _leave(self) -> None:
        """Close the file, and remove it if it does not have its final name yet; a forked process leaves it alone."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)
        self._lock.close()


PackedFile: TypeAlias = MappedFile | GrowingFile


def open_packed(kept: KeptWeights | None) -> PackedFile | None:
    """The model's file, or a new one to write; None if there should be none, or if it fails, which is logged."""
    if kept is None or kept.num_bytes < LEAST_BYTES or sys.platform == "win32":
        return None
    about = f"library {VERSION}, {platform.machine()}, {kept.about}"
    path = kept.folder / f"{blake2b(about.encode(), digest_size=DIGEST_BYTES).hexdigest()}{SUFFIX}"
    try:
        return MappedFile(path, about)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        logger.warning("%s is not used, and is made again: %s", path, error)
        with suppress(OSError):
            remove(path)
    if not kept.is_whole:
        return None
    try:
        with held(kept.folder):  # a new file is not removed before its writer holds it
            make_room(kept.folder, kept.num_bytes)
            return GrowingFile(path, kept, about)
    except OSError as error:
        say_not_kept(kept.name, kept.folder, str(error.strerror))
        return None


def rows_packed(descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
    """Pack rows that are still in a file, see cpp/pack.h; returns the packed size, or -1 if the file cannot be read."""
    try:
        with rows.path.open("rb", buffering=0) as file:
            source.places = rows.places_O.data_ptr()
            source.file = file.fileno()
            num_bytes = int(library().forerun_pack(byref(descriptor), byref(source), kernel_threads()))
    except OSError:
        return -1
    if num_bytes > 0:
        rows.tell()
    return num_bytes


def make_room(folder: Path, num_bytes: int) -> None:
    """Remove temporary files of killed processes and, if the total is too large, the least recently used files.

    Raises:
        OSError: the disk has too little free space.
    """
    for left in folder.glob(f"{PART}*"):
        part = left.with_name(left.name.removesuffix(LOCK_NAME))
        if not is_held(part):
            part.unlink(missing_ok=True)
    files = sorted(stats_of(folder), key=lambda found: found[1].st_mtime)
    total = sum(stat.st_size for _, stat in files)
    for path, stat in files:
        if total + num_bytes <= MOST_BYTES:
            break
        remove(path)
        total -= stat.st_size
    if num_bytes > MOST_BYTES or free_bytes(folder) < MOST_GROWTH * num_bytes:
        raise OSError(None, f"{gigabytes(MOST_GROWTH * num_bytes)} of free space are needed")


def stats_of(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(FileNotFoundError):  # another process has removed it
            yield path, path.stat()


def is_held(path: Path) -> bool:
    """Whether a running process is writing the file."""
    try:
        lock(lock_of(path)).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_of(part: Path) -> Path:
    return part.with_name(part.name + LOCK_NAME)


def address_of(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def say_not_kept(name: str, folder: Path, reason: str) -> None:
    logger.warning(
        "packed weights of %s are not saved in %s (%s): every start packs them again, as with --pack-in-memory",
        name,
        folder,
        reason,
    )
