"""Write a model divided among ranks as a prepared folder."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from forerun.checkpoints.huggingface.stored_tensors import INDEX_NAME
from forerun.checkpoints.identity import sha256_of
from forerun.checkpoints.prepared.manifest import MANIFEST_NAME, Manifest, RankFile, StoredDType, rank_name
from forerun.checkpoints.prepared.rank_file import CODE_BYTES, formats_of, rank_tensors
from forerun.checkpoints.safetensors.header import ITEM_BYTES, read_header
from forerun.core.config import WeightsName
from forerun.core.model_spec import ModelSpec
from forerun.core.output_file import replacing, write_whole
from forerun.model.weights import WeightSource
from forerun.sharding.plan import ShardPlan

COPIED: Final = (".json", ".jinja", ".model", ".txt")  # config, tokenizer, templates, sampling, licence
OnRank = Callable[[int, int], None]  # ranks written so far, number of all ranks


def write_ranks(
    folder: Path,
    spec: ModelSpec,
    plans: Sequence[ShardPlan],
    weights_of: Callable[[ShardPlan], WeightSource],
    on_rank: OnRank = lambda done, total: None,
) -> None:
    """Write the missing files of ranks; no more than one rank's weights are in memory at a time.

    Args:
        weights_of: returns a rank's own part.

    Raises:
        OSError: a file cannot be written.
    """
    for plan in plans:
        path = folder / rank_name(plan.rank)
        if not path.exists():
            save_tensors(path, rank_tensors(weights_of(plan), spec, plan))
        on_rank(plan.rank + 1, len(plans))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, which gets its name once all of it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    try:
        with replacing(path) as unfinished:
            save_file(dict(tensors), unfinished, {"format": "pt"})
    except SafetensorError as error:  # raised if the disk is full
        raise OSError(str(error)) from error


def write_manifest(
    folder: Path,
    spec: ModelSpec,
    num_ranks: int,
    *,
    identity: str,
    weights: WeightsName,
    dtype: StoredDType,
    group_size: int,
) -> Manifest:
    """Write the manifest of a folder's rank files, which are read again to compute digests."""
    formats = Counter[str]()
    ranks = []
    for rank in range(num_ranks):
        path = folder / rank_name(rank)
        for name, num_bytes in formats_of(read_header(path, ITEM_BYTES | CODE_BYTES)):
            formats[name] += num_bytes
        ranks.append(RankFile(num_bytes=path.stat().st_size, sha256=sha256_of(path)))
    manifest = Manifest(
        identity=identity,
        weights=weights,
        dtype=dtype,
        group_size=group_size,
        formats=dict(formats),
        ranks=tuple(ranks),
    )
    write_whole(folder / MANIFEST_NAME, manifest.to_json(spec))
    return manifest


def copy_texts(source: Path, folder: Path, *, but: Sequence[str] = ()) -> None:
    """Copy all files of a checkpoint's folder except weights."""
    for path in sorted(source.iterdir()):
        if path.suffix in COPIED and path.name not in (INDEX_NAME, *but) and path.is_file():
            shutil.copyfile(path, folder / path.name)
