"""How the text behind a flag becomes a value of the flag's type."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args

import typer

YES: Final = ("1", "true", "yes", "on", "y", "t")
NO: Final = ("0", "false", "no", "off", "n", "f", "")  # as an environment variable


def plain_kind(annotation: Any) -> Any:
    """`int` for `int | None`: what a text has to become."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(annotation) else annotation


def reader_of(kind: Any) -> Callable[[Any], Any] | None:
    """What reads the text of one value and shows it where it is refused; None where every text will do."""
    if kind is bool:
        return read_switch
    if kind is int:
        return _reader(int, "a whole number")
    if kind is float:
        return _reader(float, "a number")
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _reader(kind, f"one of {choices_of(kind)}")
    return None


def choices_of(kind: type[StrEnum]) -> str:
    return ", ".join(kind)


def metavar_of(kind: Any) -> str:
    """What stands for the value in a help text."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "NAME"
    return {int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")


def read_switch(value: Any) -> bool:
    """Yes or no, as an environment variable says it."""
    word = str(value).strip().lower()
    if word not in (*YES, *NO):
        raise typer.BadParameter(f"{value!r} must be 1 for yes or 0 for no")
    return word in YES


def _reader(kind: Callable[[Any], Any], needed: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} must be {needed}") from None

    return read
