"""Parses the text after a flag into a value of the flag's type."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

import typer

from forerun.core.config import WeightsName
from forerun.core.errors import ConfigError

YES: Final = ("1", "true", "yes", "on", "y", "t")
NO: Final = ("0", "false", "no", "off", "n", "f", "")  # as an environment variable
DTYPE_ALIASES: Final = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64",
    "double": "float64",
}  # fmt: skip
UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}  # bytes
SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
TIME_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
QUANTISED: Final = tuple(name for name in get_args(WeightsName) if name != "stored")


def plain_kind(annotation: Any) -> Any:
    """`int` for `int | None`: the type that a text is parsed to."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(annotation) else annotation


def flag_kind(kind: Any) -> Any:
    """The annotation of a flag for a setting of this kind: it may be left out, and is repeated for several texts.

    A mapping of names to values of any type is one JSON object.
    """
    if get_origin(kind) is Mapping and get_args(kind)[1] is object:
        return str | None
    if get_origin(kind) in (tuple, Mapping):
        return str | None if get_args(kind)[0] is int and get_origin(kind) is tuple else list[str] | None
    return plain_kind(kind) | None


def reader_of(kind: Any) -> Callable[[Any], Any] | None:
    """The function that parses one value, with an error that shows the text; None if every text is valid."""
    if kind is bool:
        return read_switch
    if kind is int:
        return _reader(int, "a whole number")
    if kind is float:
        return _reader(float, "a number")
    if get_origin(kind) is Literal:
        return _reader(partial(choose, get_args(kind)), f"one of {', '.join(get_args(kind))}")
    return None


def choose(choices: Sequence[str], text: Any) -> str:
    """One of the choices, by its own name or by an alias from other programs."""
    name = DTYPE_ALIASES.get(str(text), str(text))
    if name not in choices and not (name in QUANTISED and "bfloat16" in choices):  # as older versions had it
        raise ValueError
    return name


def metavar_of(kind: Any) -> str:
    """The placeholder for the value in a help text. A folder's flag names its own."""
    if get_origin(kind) is Literal:
        return "NAME"
    return {int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")


def read_switch(value: Any) -> bool:
    """Yes or no, from the text of an environment variable."""
    word = str(value).strip().lower()
    if word not in (*YES, *NO):
        raise typer.BadParameter(f"{value!r} must be 1 for yes or 0 for no")
    return word in YES


def read_size(value: Any) -> int:
    """Bytes: 512MB is 512 million, 2GiB twice 2**30."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmg]i?|)b?", str(value).strip().lower())
    if found is None:
        raise typer.BadParameter(f"{value!r} must be a size, such as 512MB, 2GiB or 0")
    return int(float(found[1]) * UNITS[found[2]])


def read_duration(text: str, *, flag: str) -> float:
    """Seconds of a text such as 90, 45s, 30m, 2h or 1h30m.

    Raises:
        ConfigError: it is not a duration.
    """
    parts = TIME_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{flag} {text!r} must be a time such as 45s, 30m, 2h or 1h30m")
    return sum(float(number) * SECONDS[unit or "s"] for number, unit in parts)


def read_object(text: str, *, flag: str, example: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ConfigError: the text is not a JSON object.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} {text!r} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{flag} {text!r} must be a JSON object, such as {example}")
    return values


def _reader(kind: Callable[[Any], Any], needed: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} must be {needed}") from None

    return read
