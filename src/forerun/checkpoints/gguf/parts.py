"""Read a model that is split into several GGUF files.

Source: llama.cpp (src/llama.cpp, llama_split_path), which names them `model-00001-of-00003.gguf` and so on.
"""

import re
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.header import GgufFile, read_gguf
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short

PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(?i:gguf))")
MAX_PARTS: Final = 1024  # of 50 GB, the size into which models are usually split


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
