"""The GGUF files of a model: which of several to read, and all parts of a model that is split into several files.

Source: llama.cpp (src/llama.cpp, llama_split_path), which names them `model-00001-of-00003.gguf` and so on.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.header import GgufFile, read_gguf
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short

PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(?i:gguf))")
MAX_PARTS: Final = 1024  # of 50 GB, the size into which models are usually split
MAGIC: Final = b"GGUF"
DEFAULT_TAG: Final = "Q4_K_M"  # as in llama.cpp
SUFFIX: Final = ".gguf"
BESIDE_MODELS: Final = ("mmproj", "imatrix")  # a vision projector; the importance matrix used for quantisation
# Marks of draft models in the name of a file or of its folder: m-draft-Q8_0.gguf, draft/m.gguf, m-MTP-Q8_0.gguf.
DRAFT: Final = re.compile(r"(?<![a-z0-9])(draft(er)?|dflash|mtp|assistant|eagle\d*|medusa)(?![a-z0-9])")
MAX_LISTED: Final = 12


def read_model(path: Path) -> GgufFile:
    """The metadata of a file and all tensors, including those in its other parts.

    Raises:
        CheckpointError: a file is absent or damaged, or does not belong to the others.
    """
    first = read_gguf(path)
    split = first.section("split.")
    count = split.integer("count", 0, least=0, most=MAX_PARTS)
    if count <= 1:
        return first
    tensors = dict(first.tensors)
    _require_number(first, 0, count)
    for number, part in enumerate(parts_of(path, count)[1:], 1):
        for name, tensor in _read_part(part, number, count).items():
            if name in tensors:
                raise CheckpointError(f"{part} holds tensor {short(name)}, which {tensors[name].path} holds too")
            tensors[name] = tensor
    num_tensors = split.integer("tensors.count")
    if len(tensors) != num_tensors:
        raise split.wrong("tensors.count", f"{len(tensors)}, the number in its parts: fetch all parts again")
    return GgufFile(path=path, metadata=first.metadata, tensors=tensors)


def all_parts(path: Path) -> list[Path]:
    """All files of the model whose first file has this name."""
    named = PART_NAME.fullmatch(path.name)
    return [path] if named is None else parts_of(path, int(named["count"]))


def parts_of(path: Path, count: int) -> list[Path]:
    """All files of a model whose first one this is.

    Raises:
        CheckpointError: its name is not that of the first part.
    """
    named = PART_NAME.fullmatch(path.name)
    if named is None or int(named["number"]) != 1 or int(named["count"]) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts of a model: give the first one, whose name must end in "
            f"-00001-of-{count:05}.gguf, with the others in the same folder"
        )
    names = (f"{named['stem']}-{number:05}-of-{count:05}{named['suffix']}" for number in range(1, count + 1))
    return [path.with_name(name) for name in names]


def _read_part(path: Path, number: int, count: int) -> dict[str, StoredTensor]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: fetch every part of the model into one folder")
    file = read_gguf(path)
    _require_number(file, number, count)
    return dict(file.tensors)


def _require_number(file: GgufFile, number: int, count: int) -> None:
    """Check the number of a part by the file's own keys, since its name may have been changed."""
    split = file.section("split.")
    own = split.integer("no", 0, least=0)
    of = split.integer("count", 0, least=0)
    if (own, of) != (number, count):
        raise CheckpointError(
            f"{file.path} is part {own + 1} of {of} by its own keys, but part {number + 1} of {count} is needed here: "
            "give the first part, with the others in the same folder under their own names"
        )


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
