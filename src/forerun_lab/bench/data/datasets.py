"""Data sets by name: found in a folder, in the cache, or fetched at a pinned revision."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.paths import path_of
from forerun_lab.bench.data.download import fetch
from forerun_lab.bench.data.questions import Question, read_questions
from forerun_lab.bench.data.sources import QUESTIONS, RAW, SHOTS, SOURCES, DataSource, make_questions

BUILTIN: Final = "builtin"
NAMES: Final = (BUILTIN, *SOURCES)
GITHUB: Final = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Questions and their origin.

    Args:
        licence: terms of the data, shown to the user.
        source: where it was published.
        path: the file that was read.
    """

    name: str
    questions: tuple[Question, ...]
    licence: str
    source: str
    path: Path


def load_dataset(name: str, *, folder: Path | None = None, cache: Path, base_url: str = GITHUB) -> Dataset:
    """A data set by name, or the questions of a file.

    Args:
        name: one of `NAMES`, or a path that ends in .jsonl.
        folder: searched first, for `NAME/question.jsonl`, or for `NAME/raw.jsonl` and `NAME/shots.jsonl` if questions
            are made from raw data as in SWIFT.
        cache: searched next, in the same way; downloads are stored there.
        base_url: the server to fetch from.

    Raises:
        ConfigError: there is no such set, its file cannot be used, or it cannot be downloaded; the message says which
            file to put where.
    """
    if name.endswith(".jsonl"):
        path = path_of(name)
        return Dataset(
            name=path.stem, questions=read_questions(path), licence="not stated", source=str(path), path=path
        )
    if name == BUILTIN:
        return _builtin()
    source = SOURCES.get(name)
    if source is None:
        raise ConfigError(
            f"there is no data set {name!r}: choose from {', '.join(NAMES)}, or give a file that ends in .jsonl"
        )
    places = [place / name for place in (folder, cache) if place is not None]
    found = _present(places, source)
    path = found[0] if found else _fetch(name, source, places, base_url)
    return Dataset(
        name=name, questions=_read(path, source), licence=source.licence, source=_origin(source, base_url), path=path
    )


def is_local(name: str, *, folder: Path | None = None, cache: Path) -> bool:
    """Whether `load_dataset` finds this set, one of `NAMES`, without fetching it."""
    return name == BUILTIN or bool(_present([place / name for place in (folder, cache) if place], SOURCES[name]))


def questions_in(path: Path | None) -> tuple[Question, ...]:
    """The questions of a file; None: the built-in ones.

    Raises:
        ConfigError: the file cannot be used.
    """
    return _builtin().questions if path is None else read_questions(path.expanduser())


def _builtin() -> Dataset:
    path = Path(str(files("forerun") / "assets" / "prompts.jsonl"))
    return Dataset(
        name=BUILTIN,
        questions=read_questions(path),
        licence="those of the Python packages the function headers are from, named in each row",
        source="part of forerun",
        path=path,
    )


def _present(places: Iterable[Path], source: DataSource) -> list[Path]:
    """The files of a set that exist, the best one first."""
    return [path for place in places for path in _candidates(place, source) if path.is_file()]


def _candidates(place: Path, source: DataSource) -> tuple[Path, ...]:
    return (place / QUESTIONS,) if source.recipe is None else (place / QUESTIONS, place / RAW)


def _read(path: Path, source: DataSource) -> tuple[Question, ...]:
    if source.recipe is None or path.name == QUESTIONS:
        return read_questions(path)
    shots = path.with_name(SHOTS)
    return make_questions(source.recipe, path, shots if shots.is_file() else None)


def _fetch(name: str, source: DataSource, places: list[Path], base_url: str) -> Path:
    """Download the files into the last place, the cache. The file to read comes last, so the others exist before it."""
    if not source.downloads:
        raise ConfigError(
            f"the data set {name!r} cannot be fetched ({source.origin}): {_what_to_place(source, places)}"
        )
    for file in source.downloads:
        path = places[-1] / file.name
        if path.is_file():
            continue
        try:
            fetch(f"{base_url}/{file.path}", path, num_rows=file.num_rows, sha256=file.sha256)
        except ConfigError as error:
            raise ConfigError(f"the data set {name!r}: {error}; or {_what_to_place(source, places)}") from error
    return path


def _what_to_place(source: DataSource, places: list[Path]) -> str:
    where = places[0]
    if source.recipe is None:
        return f"place the published file at {where / QUESTIONS}"
    rows = f"{where / RAW}, a JSON object with {', '.join(source.recipe.needs)} per line"
    shots = f"; solved examples ({source.recipe.num_shots}) are its first rows, or those of {where / SHOTS}"
    advice = f"; {source.advice}" if source.advice else ""
    return f"place {rows}{advice}{shots if source.recipe.num_shots else ''}"


def _origin(source: DataSource, base_url: str) -> str:
    return f"{base_url}/{source.origin}" if source.downloads else source.origin
