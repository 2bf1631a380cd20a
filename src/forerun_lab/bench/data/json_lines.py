"""Files of one JSON object per line, read with typed accessors; errors name file, line, key and value."""

import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeGuard, TypeVar

from forerun.core.errors import ConfigError

REQUIRED: Final = object()
MAX_INTEGER: Final = 2**63 - 1
MAX_NUMBER: Final = 1e300  # leaves room for sums

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonObject:
    """The object of a line, or one nested in it. A key with the value null counts as absent.

    Args:
        place: `file:line`, for errors.
        prefix: the path from the line's own object to this one, for example `choices[0].`.
    """

    place: str
    values: Mapping[str, object]
    prefix: str = ""

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: object = REQUIRED) -> int:
        return self._one(key, default, is_count, "a whole number >= 0")

    def number(self, key: str, default: object = REQUIRED) -> float:
        return float(self._one(key, default, is_size, "a finite number >= 0"))

    def signed(self, key: str, default: object = REQUIRED) -> float:
        return float(self._one(key, default, is_number, "a finite number"))

    def text(self, key: str, default: object = REQUIRED) -> str:
        return self._one(key, default, is_text, "a string of valid characters")

    def identifier(self, key: str, default: object = REQUIRED) -> int | str:
        return self._one(key, default, is_identifier, "a whole number or a string")

    def integers(self, key: str, default: object = REQUIRED) -> tuple[int, ...]:
        return self._all(key, default, is_count, "a whole number >= 0")

    def numbers(self, key: str, default: object = REQUIRED) -> tuple[float, ...]:
        return tuple(map(float, self._all(key, default, is_size, "a finite number >= 0")))

    def flags(self, key: str, default: object = REQUIRED) -> tuple[bool, ...]:
        return self._all(key, default, is_flag, "true or false")

    def texts(self, key: str, default: object = REQUIRED) -> tuple[str, ...]:
        return self._all(key, default, is_text, "a string of valid characters")

    def nested(self, key: str, default: object = REQUIRED) -> "JsonObject":
        """The object under `key`."""
        values = self._one(key, default, is_object, "an object")
        return JsonObject(place=self.place, values=values, prefix=f"{self.prefix}{key}.")

    def objects(self, key: str, default: object = REQUIRED) -> "tuple[JsonObject, ...]":
        """The objects of the list under `key`."""
        items = self._all(key, default, is_object, "an object")
        return tuple(
            JsonObject(place=self.place, values=values, prefix=f"{self.prefix}{key}[{index}].")
            for index, values in enumerate(items)
        )

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        return self._one(key, default, is_flag, "true or false")

    def wrong(self, key: str, needed: str) -> NoReturn:
        """Refuse the value of a key.

        Raises:
            ConfigError: always.
        """
        # A value may be too deeply nested for repr, or too long to print.
        shown = reprlib.repr(self.values.get(key))
        raise ConfigError(f"{self.place}: {self.prefix}{key} is {shown}, but must be {needed}")

    def _one(self, key: str, default: object, is_right: Callable[[object], TypeGuard[T]], needed: str) -> T:
        value = self._get(key, default)
        if not is_right(value):
            self.wrong(key, needed)
        return value

    def _all(self, key: str, default: object, is_right: Callable[[object], TypeGuard[T]], needed: str) -> tuple[T, ...]:
        values = self._get(key, default)
        if not isinstance(values, list | tuple):
            self.wrong(key, f"a list, each item {needed}")
        right: list[T] = []
        for index, value in enumerate(values):
            if not is_right(value):
                shown = reprlib.repr(value)
                raise ConfigError(f"{self.place}: {self.prefix}{key}[{index}] is {shown}, but must be {needed}")
            right.append(value)
        return tuple(right)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ConfigError(f"{self.place}: {self.prefix}{key} is missing: add it, or leave out the line")
        return default


def is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER


def is_size(value: object) -> TypeGuard[int | float]:
    return is_number(value) and value >= 0


def is_flag(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def is_text(value: object) -> TypeGuard[str]:
    """Whether this is a string that UTF-8 can encode. JSON can also hold lone surrogates, which cannot be printed."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_identifier(value: object) -> TypeGuard[int | str]:
    return is_text(value) or (type(value) is int and abs(value) <= MAX_INTEGER)


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def read_objects(path: Path) -> Iterator[JsonObject]:
    """The object of every line that is not blank.

    Raises:
        ConfigError: the file cannot be read, or a line is not one JSON object; the message names the line.
    """
    yield from _objects(path, read_bytes(path))


def read_whole_lines(path: Path) -> tuple[tuple[JsonObject, ...], bytes]:
    """Every line, as objects and as bytes, without an unfinished last line.

    The last line is unfinished if it has no newline and is not a JSON object. This test is exact, because no prefix of
    a JSON object is itself a JSON object.

    Raises:
        ConfigError: as with `read_objects`.
    """
    data = read_bytes(path)
    whole = data[: data.rfind(b"\n") + 1]
    if _is_object(data[len(whole) :]):
        whole = data
    return tuple(_objects(path, whole)), whole


def read_bytes(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give a file of one JSON object per line") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error}): check the file and its permissions") from error


def parse(place: str, line: bytes) -> JsonObject:
    """Parse a line into an object.

    Raises:
        ConfigError: the line is not UTF-8, not JSON, nested too deep, or not an object.
    """
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"{place} is nested too deep: one JSON object is needed") from error
    except ValueError as error:
        raise ConfigError(f"{place} is not valid JSON ({error}): one JSON object per line is needed") from error
    if not is_object(values):
        raise ConfigError(f"{place} holds a JSON {type(values).__name__}, but must hold an object")
    return JsonObject(place=place, values=values)


def _objects(path: Path, data: bytes) -> Iterator[JsonObject]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield parse(f"{path}:{number}", line)


def _is_object(line: bytes) -> bool:
    try:
        parse("", line)
    except ConfigError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
