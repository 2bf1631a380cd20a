"""Files of one JSON object per line, read with typed accessors; errors name file, line, key and value."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeAlias

import msgspec
from msgspec import Meta

from forerun.core.errors import ConfigError
from forerun.core.json_file import REQUIRED, short

EACH: Final = "a list, each item "
ITEM: Final = re.compile(r"\$\[(\d+)\]")  # in an error of msgspec: the item of the list that is wrong
MAX_INTEGER: Final = 2**63 - 1
MAX_NUMBER: Final = 1e300  # leaves room for sums
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number: TypeAlias = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Size: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_NUMBER)]
# JSON can also hold halves of surrogate pairs, which cannot be printed.
Text: TypeAlias = Annotated[str, Meta(pattern="^[^\ud800-\udfff]*\\Z")]
Identifier: TypeAlias = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | Text
Object: TypeAlias = dict[str, Any]


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
        return int(self.typed(key, Count, "a whole number >= 0", default))

    def number(self, key: str, default: object = REQUIRED) -> float:
        return float(self.typed(key, Size, "a finite number >= 0", default))

    def signed(self, key: str, default: object = REQUIRED) -> float:
        return float(self.typed(key, Number, "a finite number", default))

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        return bool(self.typed(key, bool, "true or false", default))

    def text(self, key: str, default: object = REQUIRED) -> str:
        return str(self.typed(key, Text, "a string of valid characters", default))

    def identifier(self, key: str, default: object = REQUIRED) -> int | str:
        found: int | str = self.typed(key, Identifier, "a whole number or a string", default)
        return found

    def integers(self, key: str, default: object = REQUIRED) -> tuple[int, ...]:
        return tuple(self.typed(key, tuple[Count, ...], f"{EACH}a whole number >= 0", default))

    def numbers(self, key: str, default: object = REQUIRED) -> tuple[float, ...]:
        return tuple(self.typed(key, tuple[Size, ...], f"{EACH}a finite number >= 0", default))

    def flags(self, key: str, default: object = REQUIRED) -> tuple[bool, ...]:
        return tuple(self.typed(key, tuple[bool, ...], f"{EACH}true or false", default))

    def texts(self, key: str, default: object = REQUIRED) -> tuple[str, ...]:
        return tuple(self.typed(key, tuple[Text, ...], f"{EACH}a string of valid characters", default))

    def nested(self, key: str, default: object = REQUIRED) -> "JsonObject":
        """The object under `key`."""
        values = self.typed(key, Object, "an object", default)
        return JsonObject(place=self.place, values=values, prefix=f"{self.prefix}{key}.")

    def objects(self, key: str, default: object = REQUIRED) -> "tuple[JsonObject, ...]":
        """The objects of the list under `key`."""
        items = self.typed(key, tuple[Object, ...], f"{EACH}an object", default)
        return tuple(
            JsonObject(place=self.place, values=values, prefix=f"{self.prefix}{key}[{index}].")
            for index, values in enumerate(items)
        )

    def typed(self, key: str, kind: Any, needed: str, default: object = REQUIRED) -> Any:
        """The value of a key as a type of msgspec's; `needed` says in words what that is.

        Raises:
            ConfigError: the key is absent and has no default, or the value is not of this type.
        """
        value = self.values.get(key)
        if value is None and default is REQUIRED:
            raise ConfigError(f"{self.place}: {self.prefix}{key} is missing: add it, or leave out the line")
        value = default if value is None else value
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            item = ITEM.search(str(error))
        if item is not None and isinstance(value, list | tuple):
            self.wrong(f"{key}[{item[1]}]", needed.removeprefix(EACH), value[int(item[1])])
        self.wrong(key, needed, value)

    def wrong(self, key: str, needed: str, value: object = REQUIRED) -> NoReturn:
        """Refuse the value of a key.

        Raises:
            ConfigError: always.
        """
        seen = self.values.get(key) if value is REQUIRED else value
        raise ConfigError(f"{self.place}: {self.prefix}{key} is {short(seen)}, but must be {needed}")


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
    if not isinstance(values, dict):
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
