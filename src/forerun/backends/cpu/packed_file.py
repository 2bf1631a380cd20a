"""A model's codes as they were packed, in a file of its own that later starts map: nothing to pack, and no second copy.

The packed linears lie one after another from multiples of 64 bytes on; behind them an index in JSON says what they are,
where each begins and what the file depends on; the last 8 bytes are the index's length. A file is renamed to its name
once all of it is on the disk, so that it is whole or not there. It holds linears of blocks only.
"""

import json
import logging
import mmap
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from ctypes import byref
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp
from threading import Thread
from typing import Final, TypeAlias

import numpy as np
import torch

from forerun.backends.cpu.binding import VERSION, library
from forerun.backends.cpu.layouts import NativeLinear, Source
from forerun.backends.kept_weights import KeptWeights
from forerun.model.weights import RowsInFile

logger = logging.getLogger(__name__)

LEAST_BYTES: Final = 32 << 20  # of a model: less is packed in no time
MOST_BYTES: Final = 32 << 30  # of all files together
LINE: Final = 64
LENGTH_BYTES: Final = 8
MOST_INDEX_BYTES: Final = 1 << 24
DIGEST_BYTES: Final = 8
MOST_GROWTH: Final = 2  # times that packing may make stored bytes
MOUNTS: Final = Path("/proc/self/mounts")
REMOTE: Final = ("nfs", "cifs", "smb", "fuse", "9p", "lustre", "ceph", "gpfs", "beegfs", "afs", "glusterfs")
SUFFIX: Final = ".packed"
PART: Final = ".part-"


class MappedFile:
    """A whole file, mapped."""

    def __init__(self, path: Path, about: str) -> None:
        with path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._address = address_of(self.memory)
        self._places, self._end = read_index(self.memory, about)
        if hasattr(mmap, "MADV_WILLNEED"):
            self.memory.madvise(mmap.MADV_WILLNEED)
        with suppress(OSError):
            os.utime(path)  # those unused longest go first

    def lay_out(self, key: str, descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
        """Point a linear at its bytes here; their number, or 0 where they are not here."""
        place, has_bias = self._places.get(key), int(source.bias is not None)
        if place is None:
            return 0
        num_bytes = int(library().forerun_place(byref(descriptor), self._address + place, has_bias))
        if place + num_bytes > self._end:
            return 0
        rows.tell()
        return num_bytes

    def finish(self) -> None:
        """There is nothing left to do."""


class GrowingFile:
    """A file that is packed into, mapped already."""

    def __init__(self, path: Path, kept: KeptWeights, about: str) -> None:
        self._path, self._about, self._end = path, about, 0
        self._name, self._places = kept.name, dict[str, int]()
        self._descriptor, part = mkstemp(prefix=PART, dir=path.parent)
        self._part, self._is_good = Path(part), True
        try:
            lock(self._descriptor)
            most = kept.num_bytes * MOST_GROWTH
            os.ftruncate(self._descriptor, most)  # takes no room
            self.memory = mmap.mmap(self._descriptor, most, access=mmap.ACCESS_READ)
        except BaseException:
            self._leave()
            raise
        self._address = address_of(self.memory)

    def lay_out(self, key: str, descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
        """Pack a linear and point it at its bytes here; their number, or 0 where it has to be packed elsewhere."""
        if not self._is_good:
            return 0
        source.out, source.out_place = self._descriptor, self._end
        num_bytes = rows_packed(descriptor, source, rows)
        source.out = -1
        if num_bytes < -1:
            self._give_up(os.strerror(-1 - num_bytes))
        if num_bytes <= 0:
            return 0
        library().forerun_place(byref(descriptor), self._address + self._end, int(source.bias is not None))
        self._places[key], self._end = self._end, -(-(self._end + num_bytes) // LINE) * LINE
        return num_bytes

    def finish(self) -> None:
        """All is packed: have it written to the disk meanwhile, and give it its name then."""
        if not self._places:
            self._leave()
        elif self._is_good:
            Thread(target=self._name_it, name="forerun keeps packed weights").start()

    def _name_it(self) -> None:
        index = json.dumps({"about": self._about, "places": self._places}).encode()
        try:
            write_all(self._descriptor, index + len(index).to_bytes(LENGTH_BYTES, "little"), self._end)
            os.ftruncate(self._descriptor, self._end + len(index) + LENGTH_BYTES)
        except OSError as error:
            self._give_up(str(error.strerror))
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:  # the system may have dropped pages that are mapped
            logger.error(
                "the disk did not take the packed weights of %s (%s): texts may be wrong from now on, so start forerun "
                "again, with --pack-in-memory", self._name, error.strerror,
            )  # fmt: skip
            self._leave()
            return
        try:
            self._part.replace(self._path)
            os.close(self._descriptor)
        except OSError as error:
            self._give_up(str(error.strerror))

    def _give_up(self, reason: str) -> None:
        say_not_kept(self._name, self._path.parent, reason)
        self._leave()

    def _leave(self) -> None:
        """Remove the file; what is mapped stays so."""
        if self._is_good:
            self._is_good = False
            with suppress(OSError):
                self._part.unlink(missing_ok=True)
            os.close(self._descriptor)


PackedFile: TypeAlias = MappedFile | GrowingFile


def open_packed(kept: KeptWeights | None) -> PackedFile | None:
    """The model's file, or a new one to pack into; None where there is to be none, which is said if that is a fault."""
    if kept is None or kept.num_bytes < LEAST_BYTES or sys.platform == "win32":
        return None
    about = f"library {VERSION}, {platform.machine()}, {kept.about}"
    path = kept.folder / f"{blake2b(about.encode(), digest_size=DIGEST_BYTES).hexdigest()}{SUFFIX}"
    try:
        return MappedFile(path, about)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        logger.warning("%s is left aside, and made anew: %s", path, error)
    if not kept.is_whole:
        return None
    try:
        kept.folder.mkdir(parents=True, exist_ok=True)
        if kind := remote_kind(kept.folder):
            raise OSError(None, f"it is on {kind}, and not on a disk of this machine")
        make_room(kept.folder, kept.num_bytes)
        return GrowingFile(path, kept, about)
    except OSError as error:
        say_not_kept(kept.name, kept.folder, str(error.strerror))
        return None


def rows_packed(descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
    """Pack rows that are still in a file, see cpp/pack.h; -1 where it cannot be read, as reading it will say."""
    try:
        with rows.path.open("rb", buffering=0) as file:
            source.places, source.file = rows.places_O.data_ptr(), file.fileno()
            num_bytes = int(library().forerun_pack(byref(descriptor), byref(source), torch.get_num_threads()))
    except OSError:
        return -1
    if num_bytes > 0:
        rows.tell()
    return num_bytes


def read_index(memory: mmap.mmap, about: str) -> tuple[dict[str, int], int]:
    """Where each linear begins, and where the last may end.

    Raises:
        ValueError: the file is not whole, or not this model's.
    """
    length = int.from_bytes(memory[-LENGTH_BYTES:], "little")
    begin = len(memory) - LENGTH_BYTES - length
    if begin < 0 or length > MOST_INDEX_BYTES:
        raise ValueError("it is damaged")
    index = json.loads(memory[begin : begin + length])
    if not isinstance(index, dict) or index.get("about") != about:
        raise ValueError("it is another model's")
    places = index.get("places")
    if not isinstance(places, dict) or not all(
        type(place) is int and 0 <= place < begin and place % LINE == 0 for place in places.values()
    ):
        raise ValueError("its index is damaged")
    return places, begin


def write_all(descriptor: int, raw: bytes, place: int) -> None:
    while raw:
        num_written = os.pwrite(descriptor, raw, place)
        raw, place = raw[num_written:], place + num_written


def remote_kind(folder: Path) -> str | None:
    """The kind of file system that a folder is on if another machine has it: it may fail to keep what it has taken, and
    drop what is mapped. None for a local one, or where the system does not say."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return None
    path = folder.resolve()
    above = [(len(point), kind) for _, point, kind, *_ in mounts if path.is_relative_to(point.replace("\\040", " "))]
    kind = max(above, default=(0, ""))[1]
    return kind if kind.startswith(REMOTE) else None


def make_room(folder: Path, num_bytes: int) -> None:
    """Remove what killed processes left and, while there is too much, what was unused longest.

    Raises:
        OSError: the disk has too little room left.
    """
    for part in folder.glob(f"{PART}*"):
        if not is_held(part):
            part.unlink(missing_ok=True)
    files = sorted(stats_of(folder), key=lambda found: found[1].st_mtime)
    total = sum(stat.st_size for _, stat in files)
    for path, stat in files:
        if total + num_bytes <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= stat.st_size
    if num_bytes > MOST_BYTES or shutil.disk_usage(folder).free < MOST_GROWTH * num_bytes:
        raise OSError(None, f"{MOST_GROWTH * num_bytes / 1e9:.1f} GB of room are needed")


def stats_of(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(FileNotFoundError):  # another process has removed it
            yield path, path.stat()


def lock(descriptor: int) -> None:
    """Hold a file for this process, however it ends.

    Raises:
        BlockingIOError: another process holds it.
    """
    from fcntl import LOCK_EX, LOCK_NB, flock

    flock(descriptor, LOCK_EX | LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether a process that lives writes the file."""
    try:
        with path.open("rb") as file:
            lock(file.fileno())
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def address_of(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def say_not_kept(name: str, folder: Path, reason: str) -> None:
    logger.warning(
        "packed weights of %s are not kept in %s (%s): every start packs them anew. --pack-in-memory asks for that",
        name, folder, reason,
    )  # fmt: skip
