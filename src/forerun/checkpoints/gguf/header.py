"""The header of a GGUF file: its metadata and the places of its tensors, checked before any weight is read.

Format: magic, version, number of tensors, number of keys; keys with values; tensors with name, dimensions, type and
offset; then, from the next multiple of the alignment on, the data. Source: see `bounded_reader`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final

from forerun.checkpoints.gguf.bounded_reader import BoundedReader, MetaValue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.json_file import POINTER_MARK, JsonFile, refuse_pointer, short
from forerun.model.gguf_block_types import BLOCKS

MAGIC: Final = int.from_bytes(b"GGUF", "little")
VERSIONS: Final = (2, 3)
# Elements and bytes of a block; a block of an unquantised type has one element.
BLOCK_SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    **dict[str, tuple[int, int]](BLOCKS.items()),
}  # fmt: skip
# Numbers of ggml's types, including unsupported ones, so that error messages can name them.
TYPE_NAMES: Final[Mapping[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
ALIGNMENT_KEY: Final = "general.alignment"
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 2**16  # the largest page size of any system
MAX_DIMENSIONS: Final = 4
MAX_ELEMENTS: Final = 2**48  # of a tensor, far more than in any file


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class GgufFile:
    """The metadata of one file; `tensors` are in the order of their bytes."""

    path: Path
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, StoredTensor]

    def section(self, prefix: str) -> JsonFile:
        """The keys that begin with `prefix`, without it; error messages name the file and the whole key."""
        values = {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}
        return JsonFile(path=self.path, values=values, prefix=prefix)


def read_gguf(path: Path) -> GgufFile:
    """The metadata and tensors of one file.

    Raises:
        CheckpointError: the file is absent, cut short, damaged or of another format; the message names file and key or
            tensor.
    """
    try:
        file_bytes = path.stat().st_size
        with FileIO(path) as file:
            refuse_pointer(path, file.read(len(POINTER_MARK)))
            file.seek(0)
            return _read(BoundedReader(path, file, file_bytes), file_bytes)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error


def _read(reader: BoundedReader, file_bytes: int) -> GgufFile:
    _check_version(reader)
    num_tensors = reader.uint64("the number of tensors")
    num_keys = reader.uint64("the number of keys")
    metadata: dict[str, MetaValue] = {}
    for _ in range(num_keys):
        key = reader.key(f"the key behind {short(next(reversed(metadata), 'none'))}")
        if key in metadata:
            raise reader.damaged(f"it holds the key {short(key)} twice")
        metadata[key] = reader.value(f"the value of {short(key)}")
    tensors: dict[str, StoredTensor] = {}
    for _ in range(num_tensors):
        tensor = _read_tensor(reader, f"the tensor behind {short(next(reversed(tensors), 'none'))}")
        if tensor.name in tensors:
            raise reader.damaged(f"it holds tensor {short(tensor.name)} twice")
        tensors[tensor.name] = tensor
    return GgufFile(path=reader.path, metadata=metadata, tensors=_place(reader, metadata, tensors, file_bytes))


def _check_version(reader: BoundedReader) -> None:
    if reader.uint32("the magic") != MAGIC:
        raise CheckpointError(f"{reader.path} is not a GGUF file: give a GGUF file, or a folder of safetensors")
    version = reader.uint32("the version")
    if version not in VERSIONS:
        is_big_endian = version.to_bytes(4, "big") in (number.to_bytes(4, "little") for number in VERSIONS)
        seen = "big-endian" if is_big_endian else f"of version {version}"
        raise CheckpointError(
            f"{reader.path} is a GGUF file {seen}, but must be little-endian and of version 2 or 3: fetch or convert "
            "the model again"
        )


def _read_tensor(reader: BoundedReader, what: str) -> StoredTensor:
    """A tensor, with its offset relative to the start of the data."""
    name = reader.key(what)
    what = f"tensor {short(name)}"
    num_dimensions = reader.uint32(what)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise reader.damaged(f"{what} has {num_dimensions} dimensions, and must have 1 to {MAX_DIMENSIONS}")
    shape = reader.sizes(num_dimensions, what)[::-1]
    dtype = _type_of(reader, what)
    num_elements, block_bytes = BLOCK_SIZES[dtype]
    if not 0 < prod(shape) < MAX_ELEMENTS or shape[-1] % num_elements:
        raise reader.damaged(f"{what} of shape {list(shape)} cannot be stored in blocks of {num_elements} elements")
    return StoredTensor(
        path=reader.path,
        name=name,
        dtype=dtype,
        shape=shape,
        offset=reader.uint64(what),
        num_bytes=prod(shape) // num_elements * block_bytes,
    )


def _type_of(reader: BoundedReader, what: str) -> str:
    code = reader.uint32(what)
    dtype = TYPE_NAMES.get(code, f"type {code}")
    if dtype not in BLOCK_SIZES:
        raise CheckpointError(
            f"{reader.path}: {what} is stored as {dtype}, but must be one of {', '.join(BLOCK_SIZES)}: choose "
            "another file of the model, such as the one with Q4_K_M in its name"
        )
    return dtype


def _place(
    reader: BoundedReader, metadata: Mapping[str, MetaValue], tensors: Mapping[str, StoredTensor], file_bytes: int
) -> dict[str, StoredTensor]:
    """The tensors with absolute offsets, after checking that they are aligned, inside the file and do not overlap."""
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise reader.damaged(f"{ALIGNMENT_KEY} is {short(alignment)}, and must be a power of two up to {MAX_ALIGNMENT}")
    data_start = end = -(-reader.position // alignment) * alignment
    placed: dict[str, StoredTensor] = {}
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        offset = data_start + tensor.offset
        if tensor.offset % alignment or offset < end:
            raise reader.damaged(
                f"tensor {short(tensor.name)} starts at byte {offset}, and must start at a multiple of {alignment} "
                f"from {end} on"
            )
        end = offset + tensor.num_bytes
        if end > file_bytes:
            raise reader.damaged(f"tensor {short(tensor.name)} ends at byte {end}, but the file has only {file_bytes}")
        placed[tensor.name] = replace(tensor, offset=offset)
    return placed
