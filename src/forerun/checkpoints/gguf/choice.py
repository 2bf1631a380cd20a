"""Choose among several GGUF files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.parts import PART_NAME
from forerun.core.errors import CheckpointError

MAGIC: Final = b"GGUF"
DEFAULT_TAG: Final = "Q4_K_M"  # as in llama.cpp
SUFFIX: Final = ".gguf"
BESIDE_MODELS: Final = ("mmproj", "imatrix")  # a vision projector; the importance matrix used for quantisation
# Marks of draft models in the name of a file or of its folder: m-draft-Q8_0.gguf, draft/m.gguf, m-MTP-Q8_0.gguf.
DRAFT: Final = re.compile(r"(?<![a-z0-9])(draft(er)?|dflash|mtp|assistant|eagle\d*|medusa)(?![a-z0-9])")
MAX_LISTED: Final = 12


def is_gguf(path: Path) -> bool:
    """Whether a file is a GGUF file by its content or its name; with only the name, reading it reports the fault."""
    if path.suffix.lower() == SUFFIX:
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def first_files(names: Iterable[str]) -> list[str]:
    """The files that hold a model; if a model has several parts, only the first."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(SUFFIX)
        and not any(part in name.lower() for part in BESIDE_MODELS)
        and ((match := PART_NAME.fullmatch(name)) is None or int(match["number"]) == 1)
    )


def plain_files(names: Iterable[str]) -> list[str]:
    """`first_files` without draft models; all of them if there are no others."""
    found = first_files(names)
    return [name for name in found if not DRAFT.search(name.lower())] or found


def choose_file(repository: str, names: Sequence[str], tag: str | None) -> str:
    """The file of a type, in the notation of llama.cpp's `-hf`; without a type, the one of Q4_K_M, else the first. A
    draft model is chosen only if no other file fits.

    Args:
        tag: such as "Q4_K_M", in any case; it must be part of the file's name or folder.

    Raises:
        CheckpointError: there is no such file.
    """
    found = first_files(names)
    said = re.compile(rf"(?<![a-z0-9]){re.escape(tag or DEFAULT_TAG)}(?=[./-])", re.IGNORECASE)
    plain = plain_files(names)
    chosen = next(filter(said.search, (*plain, *found) if tag else plain), plain[0] if plain and tag is None else None)
    if chosen is None:
        listed = ", ".join(found[:MAX_LISTED]) or "none"
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise CheckpointError(f"{repository} has no GGUF file with {tag} in its name: choose one of {listed}{more}")
    return chosen
