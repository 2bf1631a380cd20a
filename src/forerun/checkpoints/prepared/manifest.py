"""The manifest of a prepared folder: its model, ranks and format, and every file's digest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from forerun.core.config import WeightsName
from forerun.core.drafter_config import MAX_RANKS
from forerun.core.errors import CheckpointError
from forerun.core.json_file import MAX_SIZE, JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import ShardPlan, plan_shards

MANIFEST_NAME: Final = "forerun_ranks.json"
VERSION: Final = 1
PREPARE_AGAIN: Final = "prepare the model again"
StoredDType = Literal["float64", "float32", "bfloat16", "float16"]
NumBytes = Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """One rank's file: its size in bytes and its SHA-256 in hexadecimal digits."""

    num_bytes: NumBytes
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a manifest. A file's values have these types and ranges.

    Args:
        identity: of the original model, see `CheckpointSource.identity`.
        weights: the format that linear layers were rounded to: stored (not at all), int8 or int4.
        dtype: of tensors that are not rounded.
        group_size: the parts of the MLP are multiples of it, see `plan_shards`.
        formats: bytes of all tensors of all ranks, by stored format.
        ranks: the files, in the order of ranks.
    """

    identity: str
    weights: WeightsName
    dtype: StoredDType
    group_size: Annotated[int, Meta(ge=1, le=MAX_SIZE)]
    formats: Mapping[str, NumBytes]
    ranks: Annotated[tuple[RankFile, ...], Meta(min_length=1, max_length=MAX_RANKS)]

    def plans(self, spec: ModelSpec) -> tuple[ShardPlan, ...]:
        """The plan of every rank."""
        return plan_shards(spec, len(self.ranks), group_size=self.group_size)

    def to_json(self, spec: ModelSpec) -> str:
        """The file's text. It includes the plan, for readers and to be compared with the computed plan on reading."""
        values = {"version": VERSION, **asdict(self), "plan": plan_values(self.plans(spec))}
        return json.dumps(values, indent=1) + "\n"


def rank_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def plan_values(plans: Sequence[ShardPlan]) -> list[Any]:
    return [asdict(plan) for plan in plans]


def read_manifest(folder: Path, spec: ModelSpec) -> Manifest:
    """The manifest of a folder.

    Raises:
        CheckpointError: it is damaged, has another version, or divides the model in another way.
    """
    file = JsonFile.read(folder / MANIFEST_NAME)
    version = file.integer("version")
    if version != VERSION:
        raise CheckpointError(
            f"{file.path} has version {version}, but this forerun reads version {VERSION}: {PREPARE_AGAIN}"
        )
    try:
        manifest = msgspec.convert(file.values, Manifest)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{file.path} is damaged ({error}): {PREPARE_AGAIN}") from None
    if file.values.get("plan") != plan_values(manifest.plans(spec)):
        raise CheckpointError(
            f"{file.path} divides the model among {len(manifest.ranks)} ranks in another way than this forerun does: "
            f"{PREPARE_AGAIN}"
        )
    return manifest
