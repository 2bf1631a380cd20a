"""Keeps the keys and values of texts on disk, so that a text is not read again when a process starts anew.

A text is saved in files of BLOCK tokens. The name of a file is a hash over the model, the owner and all tokens up to
the file's end, so texts share the files of a common beginning, and a file that is found fits the text.

Legend: L layers, S slots of the cache, B tokens of a file, K key/value heads, D head size.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from shutil import disk_usage
from struct import Struct
from time import time
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from forerun.core.threads import inference
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import copy_rows

BLOCK: Final = 256  # tokens of a file: some MB, which a disk reads in one go
LEAST_TOKENS: Final = 1024  # of a text that is saved; a shorter one is soon read again
FREE_BYTES: Final = 2**30  # left on the disk
HEADER: Final = Struct("<8s32sQI")  # magic, hash, bytes of the rows, and their checksum
MAGIC: Final = b"FRPROMP1"
WHOLE: Final = ".kv"  # has the rows of all layers
PART: Final = ".part"  # of the layers without a window
NEW: Final = ".new"  # is being written
STALE_S: Final = 3600.0  # age of a NEW file whose process has ended

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFolder:
    """Where the texts of one model are saved.

    Args:
        path: shared by all models and processes; only its user may read it.
        model: what the rows depend on besides the tokens: weights, precisions, kernels.
        max_bytes: limit on all files in the folder; those used least recently are removed first.
    """

    path: Path
    model: str
    max_bytes: int


class SavedPrompts:
    """The texts of a cache that are saved on disk.

    A file is complete under its name or not there: it is written under another name and renamed. Several processes may
    use the folder; one that removes a file only makes others read its text again. A damaged file is removed.

    Layers with a window are saved only where the cache still holds them, as in `WarmTexts`.
    """

    def __init__(self, cache: TreeCache, folder: PromptFolder) -> None:
        self._cache = cache
        self._all = folder.path
        self._own = folder.path / digest(folder.model.encode()).hex()[:16]
        self._max_bytes = folder.max_bytes
        self._saved: tuple[str, list[int]] = ("", [])  # the owner and the text that were saved last
        self._works = True

    def find(self, token_ids: Sequence[int], owner: str) -> int:
        """How many tokens of this text, from the first, are saved and can be resumed after."""
        return len(self._resumable(self._files(token_ids, owner))) * BLOCK

    def restore(self, token_ids: Sequence[int], owner: str, start: int) -> int:
        """Copy the saved rows of this text to the cache, from slot `start` on; return the slot after the last.

        The caller commits them.
        """
        files = self._files(token_ids, owner)
        path = self._resumable(files)
        number = start // BLOCK
        while number < len(path):
            rows = self._read(files[number], is_whole=path[number])
            if rows is None:  # what was copied after the text that is left is not committed
                path = self._resumable(files[:number])
                continue
            layers = self._layers(path[number])
            copy(self._cache.storage_2LSKD, layers, number * BLOCK, rows)
            number += 1
        end = len(path) * BLOCK
        if end <= start:
            return start
        parts = [number * BLOCK for number, is_whole in enumerate(path, 1) if not is_whole and number * BLOCK > start]
        self._cache.sliding.lose(max(parts, default=0))
        self._use(files[: len(path)])
        return end

    def save(self, token_ids: Sequence[int], owner: str) -> Iterator[None]:
        """Save this text, the beginning of the text in the cache; yields before every file that is written."""
        if len(token_ids) < LEAST_TOKENS or self._saved == (owner, token_ids) or not self._works:
            return
        files = self._files(token_ids, owner)[: self._max_bytes // (self._cache.bytes_per_slot * BLOCK + HEADER.size)]
        self._use(files)
        try:
            for number, file in enumerate(files):
                is_whole = number * BLOCK >= self._cache.sliding.whole_from
                if kind_of(file) in ((True,) if is_whole else (True, False)):
                    continue
                yield
                self._write(file, number * BLOCK, is_whole=is_whole)
        except (OSError, MemoryError, RuntimeError) as error:  # the last is torch's without memory, as on a full GPU
            logger.warning("texts are no longer saved in %s: %s", self._all, str(error) or "there is no memory for it")
            self._works = False
        self._use(files)
        self._saved = (owner, list(token_ids))

    def forget(self, owner: str) -> None:
        """Remove the files of this model and owner."""
        with suppress(OSError):
            for file in self._folder_of(owner).glob("*"):
                if file.suffix != NEW:  # another process is writing it
                    file.unlink(missing_ok=True)

    def _folder_of(self, owner: str) -> Path:
        return self._own / digest(owner.encode()).hex()[:16]

    def _files(self, token_ids: Sequence[int], owner: str) -> list[Path]:
        """The files of a text in order, without the suffix that tells of which layers they have the rows."""
        folder = self._folder_of(owner)
        key = digest(f"{self._own.name} {folder.name}".encode())
        ids = np.asarray(token_ids, "<u4")
        files = []
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = digest(key + ids[start : start + BLOCK].tobytes())
            files.append(folder / key.hex())
        return files

    def _resumable(self, files: Sequence[Path]) -> list[bool]:
        """For the longest beginning of the files after which the text can be resumed: whether each has the rows of all
        layers."""
        path: list[bool] = []
        for file in files:
            kind = kind_of(file)
            if kind is None:
                break
            path.append(kind)
        while path:
            whole_from = max((number * BLOCK for number, is_whole in enumerate(path, 1) if not is_whole), default=0)
            if self._cache.sliding.is_whole(len(path) * BLOCK, whole_from):
                break
            path.pop()
        return path

    def _use(self, files: Sequence[Path]) -> None:
        """Mark these files as used now, the first ones last, so that a text loses its end first."""
        now = time()
        for age, file in enumerate(files):
            for suffix in (WHOLE, PART):
                with suppress(OSError):
                    os.utime(file.with_suffix(suffix), (now - age, now - age))

    def _layers(self, is_whole: bool) -> Sequence[int]:
        return range(self._cache.storage_2LSKD.shape[1]) if is_whole else self._cache.sliding.full_layers

    def _read(self, file: Path, *, is_whole: bool) -> Tensor | None:
        """[2, L, B, K, D]: the rows of a file; None, and the file is removed, if it is damaged or gone."""
        key = bytes.fromhex(file.name)
        file = file.with_suffix(WHOLE if is_whole else PART)
        storage = self._cache.storage_2LSKD
        shape = (2, len(self._layers(is_whole)), BLOCK, *storage.shape[3:])
        rows = torch.empty(shape, dtype=storage.dtype)
        memory = bytes_of(rows)
        try:
            with file.open("rb") as opened:
                header = opened.read(HEADER.size)
                is_complete = opened.readinto(memory) == memory.nbytes
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("the saved text %s cannot be read: %s", file, error)
            return None
        if is_complete and header == HEADER.pack(MAGIC, key, memory.nbytes, crc32(memory)):
            return rows
        logger.warning("the saved text %s is damaged and was removed", file)
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return None

    def _write(self, file: Path, first: int, *, is_whole: bool) -> None:
        """Write a file with the rows from slot `first` on, after others were removed for it.

        Raises:
            OSError: it cannot be written, or the disk would be full.
        """
        with inference():
            layers = self._layers(is_whole)
            if not self._cache.is_finite(first, first + BLOCK, layers):
                return
            rows = self._cache.storage_2LSKD[:, list(layers), first : first + BLOCK].cpu().contiguous()
        memory = bytes_of(rows)
        key = bytes.fromhex(file.name)
        part = file.with_suffix(PART)
        file = file.with_suffix(WHOLE) if is_whole else part
        self._all.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._all, self._own, file.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not self._make_room(HEADER.size + memory.nbytes):
            return
        new = file.with_name(f"{file.name}.{token_hex(8)}{NEW}")  # processes of two containers may have one pid
        try:
            new.touch(mode=0o600)
            with new.open("wb") as opened:
                opened.write(HEADER.pack(MAGIC, key, memory.nbytes, crc32(memory)))
                opened.write(memory)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
        if is_whole:
            part.unlink(missing_ok=True)

    def _make_room(self, num_bytes: int) -> bool:
        """Remove the files used least recently until this many bytes fit; False if they cannot.

        Raises:
            OSError: the disk is nearly full.
        """
        found = list[tuple[float, int, Path]]()
        for file in self._all.glob("*/*/*"):
            with suppress(OSError):
                stat = file.stat()
                if file.suffix == NEW and time() - stat.st_mtime > STALE_S:
                    file.unlink(missing_ok=True)
                else:
                    found.append((stat.st_mtime, stat.st_size, file))
        excess = sum(size for _, size, _ in found) + num_bytes - self._max_bytes
        for _, size, file in sorted(found):
            if excess <= 0:
                break
            if file.suffix != NEW:  # another process is writing it
                file.unlink(missing_ok=True)
                excess -= size
        free = disk_usage(self._all).free
        if free < FREE_BYTES + num_bytes:
            raise OSError(f"the disk has only {free / 2**30:.1f} GiB free: free some, or give --no-saved-prompts")
        return excess <= 0


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def kind_of(file: Path) -> bool | None:
    """Whether a file, given without its suffix, has the rows of all layers; None if it is not there, or in a folder of
    another user."""
    for suffix in (WHOLE, PART):
        with suppress(OSError):
            file.with_suffix(suffix).stat()
            return suffix == WHOLE
    return None


def copy(storage_2LSKD: Tensor, layers: Sequence[int], first: int, rows_2LBKD: Tensor) -> None:
    """Copy the rows of these layers to the slots from `first` on."""
    for layer, rows in zip(layers, rows_2LBKD.unbind(1), strict=True):
        copy_rows(storage_2LSKD[:, layer, first : first + BLOCK], rows)


def bytes_of(rows: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    memory: Any = rows.view(torch.uint8).numpy().reshape(-1)
    return memoryview(memory)
