"""A model's name to its CheckpointSource: a local folder, built in, or from the Hugging Face hub."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from forerun.checkpoints.hub import fetch_snapshot
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.source import CheckpointSource
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET
from forerun.core.errors import CheckpointError

BUILTIN_FOLDERS: Final = {BUILTIN_TARGET: "target", BUILTIN_DRAFT: "draft"}
HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
GGUF_SUFFIX: Final = ".gguf"
GGUF_ADVICE: Final = (
    "which is not read yet: take the same model's repository of safetensors, from which such files are made, and "
    "--dtype int4 or int8 for weights of that size"
)


def open_source(name: str, *, revision: str | None = None) -> CheckpointSource:
    """The model `name`; what lies there decides how it is read.

    Args:
        name: a folder with a config.json; "builtin" or "builtin-draft"; else a hub name such as "org/model", which is
            fetched into the hub's own cache unless it is there. A folder wins over a hub name.
        revision: branch, tag or commit on the hub.

    Raises:
        CheckpointError: there is no such model, or it cannot be fetched.
    """
    if name in BUILTIN_FOLDERS:
        folder = Path(str(files("forerun") / "assets" / BUILTIN_FOLDERS[name]))
        return _open_folder(name, folder, f"the model {name!r} is part of the package, so install forerun again")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _open_folder(name, folder, "give the folder that holds config.json and the weights")
    if folder.exists():
        if folder.suffix == GGUF_SUFFIX:
            raise CheckpointError(f"{name!r} is a GGUF file, {GGUF_ADVICE}")
        raise CheckpointError(f"{name!r} is a file: give the folder that holds {CONFIG_NAME} and the weights")
    if HUB_NAME.fullmatch(name):
        advice = "choose a repository with weights in Hugging Face layout"
        return _open_folder(name, fetch_snapshot(name, revision), advice)
    raise CheckpointError(
        f"there is no folder {name!r}, and it is no full hub name: give a folder that holds {CONFIG_NAME}, a hub name "
        f'with its owner, of the form "org/model", or {" or ".join(map(repr, BUILTIN_FOLDERS))}'
    )


def _open_folder(name: str, folder: Path, advice: str) -> CheckpointSource:
    if not (folder / CONFIG_NAME).is_file():
        found = sorted(path.name for path in folder.glob(f"*{GGUF_SUFFIX}"))
        if found:
            raise CheckpointError(f"{folder} holds no {CONFIG_NAME}, but {found[0]}, a GGUF file, {GGUF_ADVICE}")
        raise CheckpointError(f"{folder} holds no {CONFIG_NAME}: {advice}")
    return HuggingFaceFolder(name=name, folder=folder)
