"""Numbers, texts and arrays from the beginning of a GGUF file, each checked against the bytes that are there.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section File Structure. All is little-endian.
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
STRING_TYPE, ARRAY_TYPE = 8, 9
UINT32: Final = Struct("<I")
UINT64: Final = Struct("<Q")
FIRST_READ_BYTES: Final = 2**21  # holds a vocabulary of 49,000 tokens with its merges
# Memory of what was read. 201,000 tokens with 440,000 merges, the most that a published model has, take 42 MB.
MAX_HELD_BYTES: Final = 2**26
NUMBER_BYTES: Final = 32  # a float in memory; an integer takes as much or less
SLOT_BYTES: Final = 16  # of a value in a list and then in a tuple, a pointer each
TEXTS_AT_ONCE: Final = 256  # whose memory is counted together
KEY_BYTES: Final = 800  # a key's entry in a dict, or a tensor's record and its copy, beside its text
LONG_TEXT_BYTES: Final = 2**16  # beyond which a text's memory is counted before it is made
MAX_TEXT_BYTES: Final = 2**25  # a whole tokenizer.json of 262,000 tokens, which some files hold, takes 33 MiB


class BoundedReader:
    """Reads a file from its beginning on, in growing steps, and never believes a count before its bytes are there.

    Args:
        path: named in refusals.
        file: unbuffered, at its beginning.
        file_bytes: its size.
    """

    def __init__(self, path: Path, file: FileIO, file_bytes: int) -> None:
        self.path, self._file, self._file_bytes = path, file, file_bytes
        self._raw, self._held_bytes = bytearray(), 0
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
        """A text that names an entry, whose memory is counted too."""
        self._hold(KEY_BYTES, what)
        return self.text(what)

    def value(self, what: str) -> MetaValue:
        """A value behind the code of its type."""
        code = self.uint32(what)
        if code == ARRAY_TYPE:
            return self._array(what)
        return self.text(what) if code == STRING_TYPE else self._numbers(1, code, what)[0]

    def damaged(self, seen: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {seen}: fetch the file again")

    def _array(self, what: str) -> tuple[MetaScalar, ...]:
        code, count = self.uint32(what), self.uint64(what)
        if code == ARRAY_TYPE:
            raise self.damaged(f"{what} is an array of arrays, which no model has")
        return tuple(self._texts(count, what)) if code == STRING_TYPE else self._numbers(count, code, what)

    def _numbers(self, count: int, code: int, what: str) -> tuple[MetaScalar, ...]:
        if code not in NUMBER_FORMATS:
            raise self.damaged(f"{what} has type {code}, and there is none beyond 12")
        number_format = NUMBER_FORMATS[code]
        start = self._take(count * calcsize(number_format), what)
        self._hold(count * (SLOT_BYTES + NUMBER_BYTES * (number_format not in "Bb?")), what)
        return unpack_from(f"<{count}{number_format}", self._raw, start)

    def _texts(self, count: int, what: str) -> list[str]:
        """Texts one behind another. A vocabulary has hundreds of thousands, so this loop calls as little as it can."""
        self._require(8 * count, what)
        texts = list[str]()
        while len(texts) < count:
            some = self._some_texts(min(count - len(texts), TEXTS_AT_ONCE), what)
            self._hold(sum(map(getsizeof, some)) + len(some) * SLOT_BYTES, what)
            texts += some
        return texts

    def _some_texts(self, count: int, what: str) -> list[str]:
        """The next texts, up to one whose memory must be counted at once."""
        texts, raw, position, read_length = [], self._raw, self.position, UINT64.unpack_from
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
        """A text with a single letter beyond the first 65,536 takes four bytes for each letter."""
        num_bytes = len(raw) * (1 if raw.isascii() else 4)
        if len(raw) > MAX_TEXT_BYTES or self._held_bytes + num_bytes > MAX_HELD_BYTES:
            raise self._too_much(what)

    def _take(self, num_bytes: int, what: str) -> int:
        """Go on by so many bytes, which are there; where they begin."""
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
        """Read up to `stop`, and some more, since reading in small steps is slow."""
        start = len(self._raw)
        if stop > self._file_bytes:
            raise self.damaged(f"{what} ends at byte {stop}, but the file has only {self._file_bytes}")
        if stop > start + MAX_HELD_BYTES:  # one text, since numbers are counted before they are read
            raise self._too_much(what)
        while len(self._raw) < stop:
            more = self._file.read(max(stop - len(self._raw), FIRST_READ_BYTES))
            if not more:
                raise self.damaged(f"{what} ends the file, which changed while it was read")
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
