"""A summary as JSON, and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from forerun.bench.report.summary import Summary, summarise
from forerun.core.errors import ConfigError

VERSION: Final = 2


def to_json(summary: Summary) -> str:
    return json.dumps({"version": VERSION} | asdict(summary), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Summary:
    """The summary that `to_json` wrote.

    Raises:
        ValueError: it is none.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise ValueError(f"no report of version {VERSION}")
    summary = _build(Summary, values, "report")
    assert isinstance(summary, Summary)
    return summary


def read_summary(path: Path) -> Summary:
    """The summary in a report.json, or the one of a run's folder or of a record file.

    Raises:
        ConfigError: it is none of these.
    """
    if path.is_dir() or path.suffix == ".jsonl":
        return summarise(path)
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give a report.json or a run's folder") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no report ({error}): make one with forerun bench report OUT") from error


def _build(kind: Any, value: Any, where: str) -> Any:
    """The value as a `kind`, which may be a dataclass, a tuple, a union or a plain type.

    Raises:
        ValueError: it cannot be one.
    """
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(get_args(kind)[0], item, where) for item in value)
    if origin is UnionType:
        return _build_any(get_args(kind), value, where)
    if origin is Literal and value in get_args(kind):
        return value
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str, NoneType) and type(value) is kind:
        return value
    if origin is Mapping and isinstance(value, dict):
        return value
    raise ValueError(f"{where} is {str(value)[:40]!r}")


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or set(value) != names:
        raise ValueError(f"{where} needs {', '.join(sorted(names))}")
    return kind(**{name: _build(hints[name], value[name], f"{where}.{name}") for name in names})


def _build_any(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    reasons = []
    for kind in kinds:
        if kind is not NoneType:
            try:
                return _build(kind, value, where)
            except ValueError as error:
                reasons.append(str(error))
    raise ValueError(reasons[0])
