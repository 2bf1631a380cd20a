"""forerun prepare --target-ranks: a model divided among ranks, in a new folder."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Final, cast

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.prepared.manifest import VERSION, StoredDType, rank_name
from forerun.cli.failures import find_model, say
from forerun.cli.progress import progress
from forerun.cli.sheet import size
from forerun.core.config import DTypeName, EngineConfig
from forerun.core.errors import ConfigError, require
from forerun.sharding.plan import require_divisible
from forerun_lab.awq.resumable_folder import require_room, resumable_folder
from forerun_lab.cli.prepare_awq import calibration_text, pack

PACKED: Final = "packed"  # the model in 4 bits, until its parts are written


def prepare_ranks(config: EngineConfig, out: Path | None, *, is_packed: bool, calib: Path | None) -> None:
    """Write each rank's part of the config's target, and print the result.

    Args:
        is_packed: whether AWQ packs the weights first.

    Raises:
        ConfigError: no folder was named, or the model cannot be prepared in this way.
        CheckpointError: the model cannot be read.
    """
    if out is None:
        raise ConfigError("no folder is named for the prepared model: add --out FOLDER")
    require(
        (config.device, config.dtype) == ("cpu", "auto"),
        "a model is prepared on the CPU, in its own dtype: leave --device and --dtype out",
    )
    require(not is_packed or config.weights == "stored", "AWQ packs weights in 4 bits: leave --weights out")
    source = plain_source(config.target)
    require_divisible(source.spec())
    text = calibration_text(calib) if is_packed else ""
    job = {
        "identity": source.identity(), "ranks": config.target_ranks, "weights": config.weights, "awq": is_packed,
        "text": sha256(text.encode()).hexdigest(), "version": VERSION,
    }  # fmt: skip
    with resumable_folder(out, job) as folder:
        if is_packed:
            if not (folder / PACKED).exists():
                pack(source, folder / PACKED, text, config.num_threads)
            source = HuggingFaceFolder(name=config.target, folder=folder / PACKED)
        num_bytes = write_parts(source, config, folder)
        rmtree(folder / PACKED, ignore_errors=True)
    say(f"written to {out}, {size(num_bytes)} for {config.target_ranks} ranks")


def plain_source(name: str) -> HuggingFaceFolder:
    """A model whose weights can be prepared.

    Raises:
        ConfigError: it is not a folder of safetensors files.
    """
    source = find_model(name)
    if isinstance(source, HuggingFaceFolder):
        return source
    raise ConfigError(
        f"{name} is not a folder of safetensors files, which preparing parts needs: give the original checkpoint. A "
        "GGUF file needs no preparation, ranks read their parts from it"
    )


def write_parts(source: HuggingFaceFolder, config: EngineConfig, folder: Path) -> int:
    """Write all files of a prepared folder; return the bytes of its weights."""
    from forerun.checkpoints.prepared.write import copy_texts, write_manifest, write_ranks  # imports torch
    from forerun.engine.model_loading import Checkpoint
    from forerun.engine.rank_weights import rank_weights, shard_plans, shared_group_size, stored_bytes

    config = replace(config, dtype=cast(DTypeName, source.stored_dtype()))
    checkpoint = Checkpoint.open(source, config)
    plans = shard_plans(checkpoint, config.target_ranks)
    unwritten = [plan for plan in plans if not (folder / rank_name(plan.rank)).exists()]
    require_room(folder, sum(stored_bytes(checkpoint, plan) for plan in unwritten))
    with progress("preparing") as show:
        write_ranks(folder, checkpoint.spec, plans, lambda plan: rank_weights(checkpoint, config, plan), show)
    copy_texts(source.folder, folder)
    manifest = write_manifest(
        folder,
        checkpoint.spec,
        len(plans),
        identity=source.identity(),
        weights=config.weights,
        dtype=cast(StoredDType, source.stored_dtype()),
        group_size=shared_group_size(checkpoint),
    )
    return sum(manifest.formats.values())
