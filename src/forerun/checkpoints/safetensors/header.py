"""The header of a safetensors file, checked against the file before any weight is read.

Format: 8 bytes little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then the data.
Source: https://huggingface.co/docs/safetensors, section Format. We read the file instead of mapping it with the
library, because a mapped file that shrinks kills the process (SIGBUS), and mapped pages count as memory a second time.
Python's own parser reads the JSON, because msgspec accepts a key that occurs twice.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from forerun.core.errors import CheckpointError
from forerun.core.json_file import POINTER_MARK, refuse_pointer, short

ITEM_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
FLOAT_BYTES: Final = ITEM_BYTES | {"F8_E4M3": 1}  # the last become plain values on reading, by their scales
WHOLE_BYTES: Final = {"I32": 4, "I64": 8}  # of packed codes, group indices and shapes
# Enough for 8,000 tensors; the largest supported model has 1,138. Parsed JSON takes up to 30 times its text.
MAX_HEADER_BYTES: Final = 2**20
MAX_DIMENSIONS: Final = 8
MAX_BYTES: Final = 2**63  # of any tensor or offset
LENGTH_BYTES: Final = 8
METADATA_KEY: Final = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor in a file: `num_bytes` from the absolute `offset`, row-major. `dtype` is a safetensors dtype, or a
    ggml type, whose blocks lie along the last dimension."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path, item_bytes: Mapping[str, int] = ITEM_BYTES) -> list[StoredTensor]:
    """The tensors of one file in the order of their bytes, which cover the rest of the file without gap or overlap.

    Args:
        item_bytes: the allowed dtypes.

    Raises:
        CheckpointError: the file is absent, cut short, or its header damaged; the message names file and tensor.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            if not file_bytes:
                raise CheckpointError(f"{path} is empty: fetch the file again")
            refuse_pointer(path, file.read(len(POINTER_MARK)))
            file.seek(0)
            header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if file_bytes < LENGTH_BYTES or header_bytes > min(file_bytes - LENGTH_BYTES, MAX_HEADER_BYTES):
                raise _damaged(path, f"{file_bytes} bytes cannot hold its header of {header_bytes} bytes")
            header = _parse_json(path, file.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error
    data_start = LENGTH_BYTES + header_bytes
    entries = [(name, entry) for name, entry in header.items() if name != METADATA_KEY]
    tensors = [_parse_tensor(path, name, entry, data_start, item_bytes) for name, entry in entries]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    _check_extent(path, tensors, data_start, file_bytes)
    return tensors


def _parse_json(path: Path, raw: bytes) -> dict[str, object]:
    def refuse_duplicates(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) != len(pairs):
            names = [name for name, _ in pairs]
            repeated, _ = Counter(names).most_common(1)[0]
            raise _damaged(path, f"the header holds {short(repeated)} twice")
        return values

    try:
        header = json.loads(raw, object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "the header is not a JSON object")
    return header


def _parse_tensor(path: Path, name: str, entry: object, data_start: int, item_bytes: Mapping[str, int]) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]} if len(
            shape
        ) <= MAX_DIMENSIONS and _are_sizes([*shape, start, stop]):
            pass
        case _:
            raise _damaged(
                path, f"the header entry of tensor {short(name)} lacks a dtype, shape or pair of data_offsets"
            )
    if dtype not in item_bytes:
        raise CheckpointError(
            f"{path}: tensor {short(name)} is stored as {short(dtype)[1:-1]}, but must be one of "
            f"{', '.join(item_bytes)}: of quantized checkpoints only those of 4 bits (AWQ, GPTQ and "
            "compressed-tensors) and FP8 are supported, choose one of these or the original"
        )
    num_bytes = prod(shape) * item_bytes[dtype]
    if stop - start != num_bytes:
        raise _damaged(path, f"tensor {short(name)} of shape {shape} needs {num_bytes} bytes, but has {stop - start}")
    offset = data_start + start
    return StoredTensor(path=path, name=name, dtype=dtype, shape=tuple(shape), offset=offset, num_bytes=num_bytes)


def _are_sizes(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_BYTES for value in values)


def _check_extent(path: Path, tensors: Sequence[StoredTensor], data_start: int, file_bytes: int) -> None:
    """Refuse overlaps, gaps, missing bytes and trailing bytes."""
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise _damaged(path, f"tensor {short(tensor.name)} starts at byte {tensor.offset}, but must start at {end}")
        end += tensor.num_bytes
        if end > file_bytes:
            raise _damaged(path, f"tensor {short(tensor.name)} ends at byte {end}, but the file has only {file_bytes}")
    if end != file_bytes:
        raise _damaged(path, f"its tensors end at byte {end}, but the file has {file_bytes}")


def _damaged(path: Path, seen: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {seen}: fetch the file again")
