"""Read numbers, texts and arrays from the beginning of a GGUF file, each checked against the file's size.

It is written by hand because the package `gguf` checks no count against the size of the file or of the memory.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section File Structure. All values are little-endian.
"""

from io import FileIO
from pathlib import Path
from struct import Struct, calcsize, unpack_from
from sys import getsizeof
from typing import Final, TypeAlias

from forerun.core.errors import CheckpointError
from forerun.core.json_file import short

MetaScalar: TypeAlias = bool | int | float | str
MetaValue: TypeAlias = MetaScalar | tuple[MetaScalar, ...]

NUMBER_FORMATS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING_TYPE = 8
ARRAY_TYPE = 9
UINT32: Final = Struct("<I")
UINT64: Final = Struct("<Q")
FIRST_READ_BYTES: Final = 2**21  # holds a vocabulary of 49,000 tokens with its merges
# Memory of the values read. Gemma 4's 262,144 tokens with scores, types and 514,906 merges, the most in a published
# model, take about 98 MB.
MAX_HELD_BYTES: Final = 2**27
NUMBER_BYTES: Final = 32  # memory of a float; an integer takes as much or less
SLOT_BYTES: Final = 16  # per value, a pointer in a list and then one in a tuple
TEXTS_AT_ONCE: Final = 256  # texts whose memory is counted together
KEY_BYTES: Final = 800  # a key's entry in a dict, or a tensor's record and its copy, without the text
LONG_TEXT_BYTES: Final = 2**16  # the memory of longer texts is counted before they are created
MAX_TEXT_BYTES: Final = 2**25  # 32 MiB; some files hold a whole tokenizer.json


class BoundedReader:
    """Reads a file from its beginning, in growing steps, and checks every count against the bytes in the file.

    Args:
        path: for error messages.
        file: unbuffered, at its beginning.
        file_bytes: size of the file.
    """

    def __init__(self, path: Path, file: FileIO, file_bytes: int) -> None:
        self.path = path
        self._file = file
        self._file_bytes = file_bytes
        self._raw = bytearray()
        self._held_bytes = 0
        self.position = 0

    def uint32(self, what: str) -> int:
        return int(UINT32.unpack_from(self._raw, self._take(4, what))[0])

    def uint64(self, what: str) -> int:
        return int(UINT64.unpack_from(self._raw, self._take(8, what))[0])

    def sizes(self, count: int, what: str) -> tuple[int, ...]:
        return unpack_from(f"<{count}Q", self._raw, self._take(8 * count, what))

    def text(self, what: str) -> str:
        return self._texts(1, what)[0]

    def key(self, what: str) -> str:
        """A text that names an entry; the entry's memory is counted too."""
        self._hold(KEY_BYTES, what)
        return self.text(what)

    def value(self, what: str) -> MetaValue:
        """A value, preceded by its type code."""
        code = self.uint32(what)
        if code == ARRAY_TYPE:
            return self._array(what)
        return self.text(what) if code == STRING_TYPE else self._numbers(1, code, what)[0]

    def damaged(self, seen: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {seen}: fetch the file again")

    def _array(self, what: str) -> tuple[MetaScalar, ...]:
        code = self.uint32(what)
        count = self.uint64(what)
        if code == ARRAY_TYPE:
            raise self.damaged(f"{what} is an array of arrays, which no model has")
        return tuple(self._texts(count, what)) if code == STRING_TYPE else self._numbers(count, code, what)

    def _numbers(self, count: int, code: int, what: str) -> tuple[MetaScalar, ...]:
        if code not in NUMBER_FORMATS:
            raise self.damaged(f"{what} has type {code}, but types are 0 to 12")
        number_format = NUMBER_FORMATS[code]
        start = self._take(count * calcsize(number_format), what)
        self._hold(count * (SLOT_BYTES + NUMBER_BYTES * (number_format not in "Bb?")), what)
        return unpack_from(f"<{count}{number_format}", self._raw, start)

    def _texts(self, count: int, what: str) -> list[str]:
        """Consecutive texts. A vocabulary has hundreds of thousands, so the loop makes few calls."""
        self._require(8 * count, what)
        texts = list[str]()
        while len(texts) < count:
            some = self._some_texts(min(count - len(texts), TEXTS_AT_ONCE), what)
            self._hold(sum(map(getsizeof, some)) + len(some) * SLOT_BYTES, what)
            texts += some
        return texts

    def _some_texts(self, count: int, what: str) -> list[str]:
        """The next texts, up to one whose memory must be counted immediately."""
        texts = []
        raw = self._raw
        position = self.position
        read_length = UINT64.unpack_from
        try:
            for _ in range(count):
                start = position + 8
                if start > len(raw):
                    self._fill(start, what)
                position = start + read_length(raw, position)[0]
                if position > len(raw):
                    self._fill(position, what)
                if is_long := position - start > LONG_TEXT_BYTES:
                    self._check_long(raw[start:position], what)
                texts.append(raw[start:position].decode())
                if is_long:
                    break
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} holds text that is not UTF-8 ({error.reason})") from error
        self.position = position
        return texts

    def _check_long(self, raw: bytearray, what: str) -> None:
        """Refuse a text that takes too much memory. One character beyond U+FFFF makes all take four bytes each."""
        num_bytes = len(raw) * (1 if raw.isascii() else 4)
        if len(raw) > MAX_TEXT_BYTES or self._held_bytes + num_bytes > MAX_HELD_BYTES:
            raise self._too_much(what)

    def _take(self, num_bytes: int, what: str) -> int:
        """Advance by `num_bytes`, after checking that the file has them; returns where they begin."""
        self._require(num_bytes, what)
        start = self.position
        self.position += num_bytes
        if self.position > len(self._raw):
            self._fill(self.position, what)
        return start

    def _require(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._file_bytes - self.position:
            raise self.damaged(f"{what} needs {num_bytes} bytes at byte {self.position} of {self._file_bytes}")

    def _fill(self, stop: int, what: str) -> None:
        """Read up to `stop` and beyond, because reading in small steps is slow."""
        start = len(self._raw)
        if stop > self._file_bytes:
            raise self.damaged(f"{what} ends at byte {stop}, but the file has only {self._file_bytes}")
        if stop > start + MAX_HELD_BYTES:  # only a text can be so long; numbers are counted first
            raise self._too_much(what)
        while len(self._raw) < stop:
            more = self._file.read(max(stop - len(self._raw), FIRST_READ_BYTES))
            if not more:
                raise self.damaged(f"the file ended within {what}, because it changed while it was read")
            self._raw += more

    def _hold(self, num_bytes: int, what: str) -> None:
        self._held_bytes += num_bytes
        if self._held_bytes > MAX_HELD_BYTES:
            raise self._too_much(what)

    def _too_much(self, what: str) -> CheckpointError:
        return self.damaged(
            f"with {short(what)[1:-1]} its metadata takes more than {MAX_HELD_BYTES} bytes of memory, more than any "
            "vocabulary does"
        )
