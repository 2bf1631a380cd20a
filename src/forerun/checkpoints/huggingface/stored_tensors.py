"""The safetensors files of a folder as one catalogue of tensors."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from forerun.checkpoints.safetensors.header import FLOAT_BYTES, ITEM_BYTES, WHOLE_BYTES, StoredTensor, read_header
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile, short

SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
SHARD_NAME: Final = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)
PICKLED: Final = (".bin", ".pt", ".pth")
STORED_BYTES: Final = FLOAT_BYTES | WHOLE_BYTES | {"U8": 1}
DTYPE_NAMES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def catalogue(folder: Path, item_bytes: Mapping[str, int] = STORED_BYTES) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by its Hugging Face name, ordered by file and offset.

    If there is an index, its files count, and a model.safetensors next to them does not. Other safetensors files in the
    folder are ignored, because some authors add a second copy in their own format.

    Args:
        item_bytes: the allowed dtypes.

    Raises:
        CheckpointError: there are no weights, a file is damaged or absent, or the index contradicts its files.
    """
    has_single = (folder / SINGLE_NAME).exists()
    if (folder / INDEX_NAME).exists() and not (has_single and _is_stale(folder)):
        return _read_shards(folder, item_bytes)
    if has_single:
        return {tensor.name: tensor for tensor in read_header(folder / SINGLE_NAME, item_bytes)}
    others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if others:
        raise CheckpointError(
            f"{folder} holds {others[0]} but no {SINGLE_NAME}: pickled weights can run code and are never read. "
            "Convert them once: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) in "
            "transformers writes safetensors"
        )
    raise CheckpointError(f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}: fetch the weights again")


def read_dtype(folder: Path) -> str:
    """The dtype with the most stored bytes: float32, bfloat16, float16 or float64; codes and indices do not count.

    The dtype in config.json is ignored: it may be float32 or absent for bfloat16 weights, and computing in float32 then
    takes twice the memory and time without gaining precision.

    Raises:
        CheckpointError: the weights are missing or damaged.
    """
    num_bytes = bytes_by_dtype(catalogue(folder).values())
    return DTYPE_NAMES[max(num_bytes.keys() & ITEM_BYTES, key=num_bytes.__getitem__, default="F32")]


def bytes_by_dtype(tensors: Iterable[StoredTensor]) -> Counter[str]:
    """Bytes of tensors by stored dtype."""
    num_bytes = Counter[str]()
    for tensor in tensors:
        num_bytes[tensor.dtype] += tensor.num_bytes
    return num_bytes


def _is_stale(folder: Path) -> bool:
    """Whether the folder has none of the files that its index names."""
    return not any((folder / shard).is_file() for shard in set(_read_weight_map(folder / INDEX_NAME).values()))


def _read_shards(folder: Path, item_bytes: Mapping[str, int]) -> dict[str, StoredTensor]:
    """The union of all shards, which must match the index exactly."""
    shard_of = _read_weight_map(folder / INDEX_NAME)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(shard_of.values())):
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / INDEX_NAME} names {shard}, which is not in the folder: fetch it again")
        for tensor in read_header(folder / shard, item_bytes):
            _check_listed(folder, tensor, shard, shard_of, tensors)
            tensors[tensor.name] = tensor
    for name, shard in shard_of.items():
        if name not in tensors:
            raise CheckpointError(
                f"{folder / INDEX_NAME} places tensor {short(name)} in {shard}, which does not hold it: "
                "fetch both again"
            )
    return tensors


def _check_listed(
    folder: Path,
    tensor: StoredTensor,
    shard: str,
    shard_of: Mapping[str, str],
    tensors: Mapping[str, StoredTensor],
) -> None:
    if tensor.name in tensors:
        first = tensors[tensor.name].path.name
        raise CheckpointError(
            f"{tensor.path} holds tensor {short(tensor.name)}, which {first} holds too: fetch both again"
        )
    if shard_of.get(tensor.name) != shard:
        listed = shard_of.get(tensor.name, "nowhere")
        raise CheckpointError(
            f"{tensor.path} holds tensor {short(tensor.name)}, which {folder / INDEX_NAME} places in {listed}: "
            "fetch both again"
        )


def _read_weight_map(path: Path) -> dict[str, str]:
    weight_map = JsonFile.read(path).nested("weight_map")
    if not weight_map.values:
        raise CheckpointError(f"{path}: weight_map is missing or empty: fetch the file again")
    shard_of = {name: weight_map.text(name) for name in weight_map.values}
    for name, shard in shard_of.items():
        if not SHARD_NAME.fullmatch(shard):
            raise weight_map.wrong(name, "the name of a .safetensors file in the same folder, without any path")
    return shard_of
