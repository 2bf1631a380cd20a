"""Choose among several GGUF files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.parts import PART_NAME
from forerun.core.errors import CheckpointError

MAGIC: Final = b"GGUF"
DEFAULT_TAG: Final = "Q4_K_M"  # as in llama.cpp
BESIDE_MODELS: Final = ("mmproj", "imatrix")  # image encoders, and importance matrices used in quantisation
MAX_LISTED: Final = 12


def is_gguf(path: Path) -> bool:
    """Whether a file is GGUF by its name or content. A damaged one with that name then gets a clear error."""
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def first_files(names: Iterable[str]) -> list[str]:
    """The files that hold a model; if a model has several parts, only the first."""
    return sorted(
        name
        for name in names
        if name.endswith(".gguf")
        and not any(part in name.lower() for part in BESIDE_MODELS)
        and ((match := PART_NAME.fullmatch(name)) is None or int(match["number"]) == 1)
    )


def choose_file(repository: str, names: Sequence[str], tag: str | None) -> str:
    """The file of a type, in the notation of llama.cpp's `-hf`; without a type, Q4_K_M, else the first file.

    Args:
        tag: such as "Q4_K_M", in any case; it must be part of the file's name or folder.

    Raises:
        CheckpointError: there is no such file.
    """
    found = first_files(names)
    said = re.compile(rf"(?<![a-z0-9]){re.escape(tag or DEFAULT_TAG)}(?=[./-])", re.IGNORECASE)
    chosen = next(filter(said.search, found), found[0] if found and tag is None else None)
    if chosen is None:
        listed = ", ".join(found[:MAX_LISTED]) or "none"
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise CheckpointError(
            f"{repository} has no GGUF file whose name says {tag}: choose of those that it has, {listed}{more}"
        )
    return chosen
