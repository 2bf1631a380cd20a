"""Well-known models: their sizes without their files, their names, where they are on the hub, and their drafts."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from forerun.checkpoints.huggingface.config import model_spec_of
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.core.paths import path_of

NAME: Final = "known_models.toml"
INT4_BYTES: Final = 0.5195  # of a weight, with scales and zeros of groups of 128
BESIDE_CONFIG: Final = ("like", "repositories", "gated", "draft")  # keys of the table that are not in a config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model whose sizes are known.

    Args:
        repositories: models of these sizes on the Hugging Face hub; the first is the one to fetch.
        is_gated: the hub gives it only to accounts that have accepted its licence.
        draft: name of the known model that drafts for it.
    """

    name: str
    repositories: tuple[str, ...]
    is_gated: bool
    draft: str | None

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        return known_models()[self.name]

    @property
    def bfloat16_bytes(self) -> int:
        """Bytes of the weights as they are published."""
        return 2 * self.spec.num_parameters

    @property
    def int4_bytes(self) -> int:
        """Bytes of the weights with linear layers in 4 bits; embedding and head stay in 16 bits."""
        spec = self.spec
        num_outside = (1 if spec.tied_embeddings else 2) * spec.vocab_size * spec.hidden_size
        return 2 * num_outside + round(INT4_BYTES * (spec.num_parameters - num_outside))


def find_known(name: str) -> KnownModel | None:
    """The known model of this name, in any case: its own name, or a repository's, with or without owner and -hf; None
    also if a folder or file has this name."""
    known = _by_name().get(name.lower())
    return None if known is None or path_of(name).exists() else known


@cache
def known_models() -> dict[str, ModelSpec]:
    """Architectures by name."""
    path = Path(NAME)
    return {name: model_spec_of(JsonFile(path=path, values=values)) for name, values in known_configs().items()}


def known_configs() -> dict[str, dict[str, Any]]:
    """The architecture entries of each known model's config.json, by name."""
    table = _table()

    def whole(values: dict[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in values.items() if key not in BESIDE_CONFIG}
        return {**whole(table[values["like"]]), **rest} if "like" in values else rest

    return {name: whole(values) for name, values in table.items()}


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("forerun.checkpoints") / NAME).read_text(encoding="utf-8"))


@cache
def _by_name() -> dict[str, KnownModel]:
    found = {}
    for name, values in _table().items():
        model = KnownModel(
            name=name,
            repositories=tuple(values["repositories"]),
            is_gated=values.get("gated", False),
            draft=values.get("draft"),
        )
        for repository in model.repositories:
            own_name = repository.rpartition("/")[2]
            for spelled in (name, repository, own_name, own_name.removesuffix("-hf")):
                found[spelled.lower()] = model
    return found
