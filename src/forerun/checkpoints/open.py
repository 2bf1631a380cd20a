"""Open a model by name: a folder, plain or prepared, a GGUF file, a built-in model, or one from the hub."""

import re
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.parts import all_parts, choose_file, is_gguf, plain_files
from forerun.checkpoints.hub import fetch_snapshot, list_files
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.known_models import find_known, known_models
from forerun.checkpoints.prepared.folder import PreparedFolder
from forerun.checkpoints.prepared.manifest import MANIFEST_NAME
from forerun.checkpoints.short_names.catalogue import find_named, named_models
from forerun.checkpoints.short_names.fetch import bring
from forerun.checkpoints.source import CheckpointSource
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_HEADS, BUILTIN_TARGET, SMOLLM2_DRAFT
from forerun.core.errors import CheckpointError
from forerun.core.json_file import shown
from forerun.core.paths import path_of

BUILTIN_FOLDERS: Final = {
    BUILTIN_TARGET: "target", BUILTIN_DRAFT: "draft", SMOLLM2_DRAFT: "smollm2_draft",
    **{name: kind for kind, name in BUILTIN_HEADS.items()},
}  # fmt: skip
UNFINISHED_DRAFT: Final = "distill/settings.json"  # of a run of forerun distill, beside the draft that it writes
OF_A_FILE: Final = re.compile(r"^(/|~|\.{1,2}/)|\.(gguf|safetensors)$", re.IGNORECASE)  # a path, not a model's name
NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
LEAST_LIKENESS: Final = 0.75  # of two names, one of which is a slip for the other; two letters of eight may be swapped
HUB_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", re.ASCII)


def open_source(name: str) -> CheckpointSource:
    """Open the model `name`; its format is detected.

    Args:
        name: a folder with a config.json, or with one GGUF file; such a file; one of `BUILTIN_FOLDERS`, which are part
            of the package; a short name of `short_names/catalogue`; a name of `known_models`, which stands for its
            repository on the hub; else a hub name such as "org/model", or "org/model:Q4_K_M" for a GGUF file of that
            type. Models of the hub are fetched into the hub's own cache if they are not there. A folder or file takes
            precedence over the hub, a short name over a folder.

    Raises:
        CheckpointError: there is no such model, or it cannot be fetched.
    """
    try:
        return _open(name)
    except OSError as error:
        raise CheckpointError(
            f"{shown(name)} cannot be opened ({error.strerror or error}): check the path, its permissions and the disk"
        ) from error


def _open(name: str) -> CheckpointSource:
    """`open_source`, but for what the system reports.

    Raises:
        OSError: a file or folder cannot be looked at.
    """
    if not name.strip():
        raise CheckpointError("the model's name is empty: give a folder, a file, or a name of `forerun models`")
    if name in BUILTIN_FOLDERS:
        folder = builtin_folder(name)
        return _open_folder(name, folder, f"the model {name!r} is part of the package, so install forerun again")
    named = find_named(name)
    path = bring(named).path if named is not None else path_of(name)
    if path.is_dir():
        return _open_folder(name, path, "give the folder that holds config.json and the weights")
    if path.exists():
        if path.is_file() and is_gguf(path):
            return GgufCheckpoint(name=name, path=path)
        raise CheckpointError(
            f"{name!r} is not a GGUF file: give one, or the folder that holds {CONFIG_NAME} and the weights"
        )
    if OF_A_FILE.search(name):
        raise CheckpointError(
            f"there is no such file or folder: {shown(name)}; check the path (relative to {Path.cwd()})"
        )
    hub_name = HUB_NAME.fullmatch(name)
    if hub_name:
        return _open_hub(name, hub_name[1], hub_name[2])
    if known := find_known(name):
        return _open_hub(name, known.repositories[0], None)
    if nearest := nearest_name(name):
        raise CheckpointError(f"there is no model, file or folder {name!r}: is {nearest} meant?")
    raise CheckpointError(
        f"there is no file or folder {name!r}, and it is not a full hub name: give a folder with {CONFIG_NAME}, a GGUF "
        'file, a hub name with its owner, of the form "org/model" or "org/model:Q4_K_M", or '
        f"{' or '.join(map(repr, BUILTIN_FOLDERS))}, or a name that `forerun models` lists"
    )


def nearest_name(name: str) -> str | None:
    """The name of a model that differs from this one by a slip: other letters, but no other version or size."""
    names = {known.lower(): known for known in (*known_models(), *named_models(), *BUILTIN_FOLDERS)}
    of_size = [known for known in names if NUMBER.findall(known) == NUMBER.findall(name)]
    nearest = get_close_matches(name.lower(), of_size, n=1, cutoff=LEAST_LIKENESS)
    return names[nearest[0]] if nearest else None


def builtin_folder(name: str) -> Path:
    """The folder of a built-in model."""
    return Path(str(files("forerun") / "assets" / BUILTIN_FOLDERS[name]))


def _open_folder(name: str, folder: Path, advice: str) -> CheckpointSource:
    if (folder / MANIFEST_NAME).is_file():
        return PreparedFolder(name=name, folder=folder)
    if (folder / CONFIG_NAME).is_file():
        return HuggingFaceFolder(name=name, folder=folder)
    found = plain_files([path.name for path in folder.glob("*")])
    if len(found) == 1:
        return GgufCheckpoint(name=name, path=folder / found[0])
    if found:
        raise CheckpointError(f"{folder} holds several GGUF files, {', '.join(found)}: give the one to use")
    if (folder / UNFINISHED_DRAFT).is_file():
        raise CheckpointError(
            f"{folder} holds an unfinished run of forerun distill: run the same command again to finish it"
        )
    raise CheckpointError(f"{folder} holds no {CONFIG_NAME}: {advice}")


def _open_hub(name: str, repository: str, tag: str | None) -> CheckpointSource:
    """Open a repository of safetensors, or a GGUF file if the repository has none, or a type was given."""
    if tag is None:
        folder = fetch_snapshot(repository)
        found = [] if next(folder.glob("*.safetensors"), None) else list_files(repository)
        if not plain_files(found):
            return _open_folder(name, folder, "choose a repository with weights in Hugging Face layout, or GGUF files")
    chosen = choose_file(repository, list_files(repository), tag)
    wanted = [path.as_posix() for path in all_parts(Path(chosen))]
    path = fetch_snapshot(repository, wanted) / chosen
    if not path.is_file():
        raise CheckpointError(f"{chosen} of {repository} is not in the hub's cache: fetch it with a network")
    return GgufCheckpoint(name=name, path=path)
