"""Well-known models whose sizes are known without their files."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from forerun.checkpoints.huggingface.config import model_spec_of
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

NAME: Final = "known_models.toml"


def known_models() -> dict[str, ModelSpec]:
    """Architectures by name."""
    path = Path(NAME)
    return {name: model_spec_of(JsonFile(path=path, values=values)) for name, values in known_configs().items()}


def known_configs() -> dict[str, dict[str, Any]]:
    """The architecture entries of each known model's config.json, by name."""
    table = tomllib.loads((files("forerun.checkpoints") / NAME).read_text(encoding="utf-8"))

    def whole(values: dict[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in values.items() if key != "like"}
        return {**whole(table[values["like"]]), **rest} if "like" in values else rest

    return {name: whole(values) for name, values in table.items()}
