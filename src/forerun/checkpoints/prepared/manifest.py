"""The manifest of a prepared folder: its model, ranks and format, and every file's digest."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from forerun.core.drafter_config import MAX_RANKS
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import ShardPlan, plan_shards

MANIFEST_NAME: Final = "forerun_ranks.json"
VERSION: Final = 1
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
MAX_FILE_BYTES: Final = 2**53
PREPARE_AGAIN: Final = "prepare the model again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """One rank's file: its size in bytes and its SHA-256 in hexadecimal digits."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a manifest.

    Args:
        identity: of the original model, see `CheckpointSource.identity`.
        weights: the format that linear layers were rounded to: stored (not at all), int8 or int4.
        dtype: of tensors that are not rounded.
        group_size: the parts of the MLP are multiples of it, see `plan_shards`.
        formats: bytes of all tensors of all ranks, by stored format.
        ranks: the files, in the order of ranks.
    """

    identity: str
    weights: str
    dtype: str
    group_size: int
    formats: Mapping[str, int]
    ranks: Sequence[RankFile]

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
    formats = file.nested("formats")
    manifest = Manifest(
        identity=file.text("identity"),
        weights=file.text("weights"),
        dtype=file.text("dtype"),
        group_size=file.integer("group_size"),
        formats={name: formats.integer(name, least=0, most=MAX_FILE_BYTES) for name in formats.values},
        ranks=_read_ranks(file),
    )
    if manifest.weights not in ("stored", "int8", "int4"):
        raise file.wrong("weights", "stored, int8 or int4")
    if manifest.dtype not in ("float64", "float32", "bfloat16", "float16"):
        raise file.wrong("dtype", "float64, float32, bfloat16 or float16")
    if file.values.get("plan") != plan_values(manifest.plans(spec)):
        raise CheckpointError(
            f"{file.path} divides the model among {len(manifest.ranks)} ranks in another way than this forerun does: "
            f"{PREPARE_AGAIN}"
        )
    return manifest


def _read_ranks(file: JsonFile) -> tuple[RankFile, ...]:
    entries = file.values.get("ranks")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_RANKS:
        raise file.wrong("ranks", f"a list of 1 to {MAX_RANKS} files")
    ranks = []
    for rank, entry in enumerate(entries):
        values = JsonFile(path=file.path, values=entry if isinstance(entry, dict) else {}, prefix=f"ranks.{rank}.")
        digest = values.text("sha256")
        if not DIGEST.fullmatch(digest):
            raise values.wrong("sha256", "64 hexadecimal digits")
        ranks.append(RankFile(num_bytes=values.integer("num_bytes", most=MAX_FILE_BYTES), sha256=digest))
    return tuple(ranks)
