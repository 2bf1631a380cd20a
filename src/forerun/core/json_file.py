"""Typed reading of JSON: msgspec checks types and ranges, and the errors say what was seen and what is needed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from forerun.core.errors import CheckpointError

REQUIRED: Final = object()
# A config has a few KiB, the index of a model of 126 layers 100 KiB.
MAX_JSON_BYTES: Final = 2**20
MAX_JSON_VALUES: Final = 2**18  # they take 30 MB once parsed; a tokenizer with 28,000 added tokens has 200,000 values
MAX_SIZE: Final = 2**24  # of any one dimension; the longest context published so far has 10 million positions
POINTER_MARK: Final = b"version https://git-lfs"
MAX_SHOWN: Final = 80  # characters of a value in a message
MAX_NAME: Final = 500  # characters of a name that the user gave, such as a path
MIN_NUMBER = 1e-12  # float32 computes with these and their squares
MAX_NUMBER = 1e12

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """The object in `path`, or one nested in it. A key with value null counts as absent."""

    path: Path
    values: Mapping[str, object]
    prefix: str = ""

    @classmethod
    def read(cls, path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> "JsonFile":
        """The file's top-level object.

        Python's own parser reads it: files that Python programs wrote may hold NaN and Infinity, which msgspec refuses.

        Raises:
            CheckpointError: the file is absent, unreadable, too large, or not one JSON object.
        """
        try:
            values = json.loads(_few_values(read_bounded(path, max_bytes)))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: a checkpoint folder must hold it") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON ({error}): fetch the file again") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a JSON {type(values).__name__}, an object is needed: fetch it again")
        return cls(path=path, values=values)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is present with value null, which for some keys differs from being absent."""
        return key in self.values and self.values[key] is None

    def integer(self, key: str, default: object = REQUIRED, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number from `least` to `most`: every size in a checkpoint is one."""
        kind = Annotated[int, Meta(ge=least, le=most)]
        return int(self.typed(key, kind, f"a whole number from {least} to {most}", default))

    def number(self, key: str, default: object = REQUIRED, *, least: float = MIN_NUMBER) -> float:
        """A number from `least` to 1e12."""
        kind = Annotated[float, Meta(ge=least, le=MAX_NUMBER)]
        return float(self.typed(key, kind, f"a number from {least:g} to {MAX_NUMBER:g}", default))

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        return bool(self.typed(key, bool, "true or false", default))

    def text(self, key: str, default: object = REQUIRED) -> str:
        return str(self.typed(key, str, "a string", default))

    def nested(self, key: str) -> "JsonFile":
        """The object under `key`; an empty one if it is absent."""
        values = self.typed(key, dict[str, Any], "an object", {})
        return JsonFile(path=self.path, values=values, prefix=f"{self.prefix}{key}.")

    def typed(self, key: str, kind: Any, needed: str, default: object = REQUIRED) -> Any:
        """The value of a key as a type of msgspec's.

        Args:
            kind: the type, with its range as `Annotated[..., msgspec.Meta(...)]`.
            needed: the same in words, for the error.

        Raises:
            CheckpointError: the key is absent and has no default, or the value is not of this type.
        """
        value = self.values.get(key)
        if value is None and default is REQUIRED:
            raise self.missing(key)
        try:
            return msgspec.convert(default if value is None else value, kind)
        except msgspec.ValidationError:
            raise self.wrong(key, f"{needed}: correct it, or fetch the file again") from None

    def wrong(self, key: str, needed: str) -> CheckpointError:
        """The error for a key with an unusable value."""
        name = shown(f"{self.prefix}{key}", MAX_SHOWN)
        return CheckpointError(f"{self.path}: {name} is {short(self.values.get(key))}, but must be {needed}")

    def missing(self, key: str) -> CheckpointError:
        """The error for a key that is absent."""
        return CheckpointError(f"{self.path}: {self.prefix}{key} is missing: add it, or fetch the file again")


def decode(raw: bytes, kind: type[T]) -> T:
    """JSON text as a value of a type, such as a msgspec.Struct.

    Raises:
        ValueError: it is not JSON, nested too deep, or of another type.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(short(str(error))) from error


def shown(name: str, max_length: int = MAX_NAME) -> str:
    """A name in a message, as it is or on one short line."""
    return name if name.isprintable() and len(name) <= max_length else short(name)


def short(value: object) -> str:
    """The beginning of a value of any size, however deeply nested, on one line."""
    shown = Repr()
    shown.maxstring = shown.maxother = shown.maxlong = MAX_SHOWN
    return shown.repr(value)


def _few_values(raw: bytes) -> bytes:
    """Return the JSON text; refuse it if it has so many values that parsing would take much more memory."""
    num_values = sum(raw.count(mark) for mark in (b",", b"[", b"{"))
    if num_values > MAX_JSON_VALUES:
        raise ValueError(f"about {num_values} values, more than any such file has")
    return raw


def refuse_pointer(path: Path, beginning: bytes) -> None:
    """Refuse a git-lfs pointer, which replaces a large file."""
    if beginning.startswith(POINTER_MARK):
        raise CheckpointError(f"{path} is a git-lfs pointer, not the file itself: run `git lfs pull` in its folder")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`.

    Raises:
        OSError: it is absent, unreadable, or larger.
        CheckpointError: it is a git-lfs pointer.
    """
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    refuse_pointer(path, raw)
    if len(raw) > max_bytes:
        raise OSError(EFBIG, f"more than {max_bytes} bytes, which no file of its kind has")
    return raw
