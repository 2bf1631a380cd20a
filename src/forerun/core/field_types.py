"""Convert and check the fields of a frozen dataclass by their annotations."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Real
from operator import index
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from forerun.core.errors import ConfigError

SINGULAR: Final = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", NoneType: "None"}
PLURAL: Final = {int: "whole numbers", float: "numbers", str: "strings", object: "values"}
T = TypeVar("T")
MIN_BEGUN: Final = 3  # letters that a misspelt name shares with the one that is meant
MAX_SHOWN: Final = 80  # characters of a wrong value in a message


def setting(default: Any, *flags: str, help: str) -> Any:
    """A field that can be set by any of these command-line flags; `help` is their help text.

    Args:
        default: the default value, or a class that makes it.
    """
    metadata = {"flags": flags, "help": help}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def read_fields(config: Any) -> None:
    """Convert every field to the plain type of its annotation; for a dataclass's `__post_init__`.

    numpy's numbers, lists for tuples and paths for strings are converted. A bool is not accepted as a number, nor a
    string as a tuple, because they are usually mistakes.

    Raises:
        ConfigError: a field holds something else.
    """
    for name, kind in _kinds(config.__class__).items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, _read(kind, value))
        except (TypeError, ValueError, OverflowError):
            value, kind = _wrong_part(value, kind)
            shown = repr(value) if len(repr(value)) <= MAX_SHOWN else f"{repr(value)[:MAX_SHOWN]}..."
            raise ConfigError(f"{name} {shown} must be {_described(kind)}{_advice(kind, value)}") from None


def settings(config_class: type[T]) -> type[T]:
    """A dataclass of settings, whose unknown names are refused with a sentence: they are what a user wrote.

    Raises:
        ConfigError: from the class, for a name that it lacks, or a value without a name.
    """
    plain = config_class.__init__
    all_fields = fields(cast(Any, config_class))
    known = [one.name for one in all_fields]
    needed = [one.name for one in all_fields if one.default is one.default_factory is MISSING]

    @wraps(plain)
    def init(self: T, *unnamed: object, **given: object) -> None:
        for name in given.keys() - known:
            begun = [one for one in known if len(name) >= MIN_BEGUN and one.startswith(name[:MIN_BEGUN])]
            nearest = [*get_close_matches(name, known, n=1), *begun]
            advice = f"is {nearest[0]} meant?" if nearest else f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{config_class.__name__} has no setting {short(name)}: {advice}")
        if unnamed:
            raise ConfigError(
                f"{config_class.__name__} takes settings by their names ({', '.join(known) or 'it has none'}), but "
                f"{short(unnamed[0])} has no name"
            )
        if missing := [name for name in needed if name not in given]:
            raise ConfigError(
                f"{config_class.__name__} needs a {missing[0]}: {config_class.__name__}({missing[0]}=...)"
            )
        plain(self, **given)

    config_class.__init__ = init  # type: ignore[method-assign, assignment]
    return config_class


@cache
def _kinds(config_class: Any) -> dict[str, Any]:
    return get_type_hints(config_class)


def _read(kind: Any, value: Any) -> object:
    """Convert `value` to this kind; raises TypeError, ValueError or OverflowError if that is impossible."""
    origin = get_origin(kind) or kind
    parts = get_args(kind)
    is_truth = isinstance(value, bool)
    if origin in (Union, UnionType):
        return _read_any(parts, value)
    if origin is Literal:
        return parts[parts.index(value)]
    if origin is tuple and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(_read(parts[0], item) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {_read(parts[0], key): _read(parts[1], item) for key, item in value.items()}
    if origin is int and not is_truth:
        return index(value)
    if origin is float and not is_truth and isinstance(value, Real):
        return float(value)
    if origin is str and isinstance(os.fspath(value), str):
        return os.fspath(value)
    if origin not in (int, float, str) and isinstance(value, origin):
        return value
    raise TypeError


def _read_any(kinds: tuple[Any, ...], value: object) -> object:
    for kind in kinds:
        try:
            return _read(kind, value)
        except (TypeError, ValueError):
            continue
    raise TypeError


def _wrong_part(value: Any, kind: Any) -> tuple[Any, Any]:
    """The first wrong name of a tuple of names, else the whole value; and the kind that it should be of."""
    element, *_ = get_args(kind) or (None,)
    if get_origin(kind) is tuple and get_origin(element) is Literal and isinstance(value, tuple | list):
        return next((name, element) for name in value if name not in get_args(element))
    return value, kind


def _described(kind: Any) -> str:
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join([", ".join(map(_described, parts[:-1])), _described(parts[-1])])
    if origin is Literal:
        return f"one of {', '.join(parts)}"
    if origin is tuple:
        return f"a tuple of {_plural(parts[0])}"
    if origin is Mapping:
        return f"a mapping of {_plural(parts[0])} to {_plural(parts[1])}"
    return SINGULAR.get(kind, f"{kind.__name__}()")


def _plural(kind: Any) -> str:
    return PLURAL.get(kind) or f"{_described(kind)} each"


def _advice(kind: Any, value: object) -> str:
    """A hint on how to write a tuple, if a single element was given."""
    if get_origin(kind) is tuple:
        try:
            return f": write ({_read(get_args(kind)[0], value)!r},)"
        except (TypeError, ValueError):
            pass
    return ""
