"""Whatever is damaged in a prepared or a packed folder, it is refused in one line that names the folder, soon."""

import json
import random
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, Final

import pytest

from forerun.checkpoints.open import open_source
from forerun.checkpoints.prepared.folder import PreparedFolder
from forerun.checkpoints.prepared.manifest import MANIFEST_NAME, rank_name
from forerun.checkpoints.source import CheckpointSource
from forerun.core.errors import ForerunError
from forerun.engine.model_loading import Checkpoint
from forerun.engine.rank_weights import rank_weights, shard_plans
from tests.checkpoints.cost import forked
from tests.checkpoints.folders import INDEX, SINGLE
from tests.checkpoints.prepared.models import config_of, prepare, write_model

NUM_DAMAGED = 60
NUM_MANY = 3000
MAX_S: Final = 5.0
NUM_RANKS: Final = 2


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders, prepared in int4 and packed by AWQ."""
    folder = tmp_path_factory.mktemp("good")
    source = write_model(folder / "packed", "qwen2", is_packed=True)
    plain = write_model(folder / "model", "llama2")
    prepare(plain, folder / "prepared", NUM_RANKS, "int4")
    assert source.spec()
    return folder


def read_all(folder: Path) -> str:
    """ "loaded", or the line that refuses it."""
    try:
        source: CheckpointSource = open_source(str(folder))
        num_ranks = NUM_RANKS if isinstance(source, PreparedFolder) else 1
        config = config_of(folder, num_ranks)
        checkpoint = Checkpoint.open(source, config)
        for plan in shard_plans(checkpoint, num_ranks):
            weights = rank_weights(checkpoint, plan)
            weights.table()
            for layer in range(checkpoint.spec.num_layers):
                for name in ("qkv", "attention_out", "gate_up", "mlp_out"):
                    weights.linear(f"layers.{layer}.{name}")
                for name in ("attention_norm", "mlp_norm"):
                    weights.vector(f"layers.{layer}.{name}")
            weights.vector("final_norm")
            weights.linear("head")
    except ForerunError as error:
        return str(error)
    return "loaded"


def truncate(rng: random.Random, folder: Path) -> str:
    path = rng.choice([path for path in sorted(folder.iterdir()) if is_needed(path)])
    raw = path.read_bytes()
    kept = rng.choice([rng.randrange(len(raw)), rng.randrange(min(len(raw), 4096))])
    if path.suffix == ".json":
        kept = min(kept, len(raw.rstrip()) - 1)  # without the last line break it is the same
    path.write_bytes(raw[:kept])
    return f"{path.name} cut to {kept} of {len(raw)} bytes"


def take_away(rng: random.Random, folder: Path) -> str:
    path = rng.choice([path for path in sorted(folder.iterdir()) if is_needed(path)])
    path.unlink()
    return f"no {path.name}"


def is_needed(path: Path) -> bool:
    return path.suffix == ".safetensors" or path.name in ("config.json", MANIFEST_NAME)


def flip(rng: random.Random, folder: Path) -> str:
    """One bit of a prepared rank's file."""
    path = folder / rank_name(rng.randrange(NUM_RANKS)) if (folder / MANIFEST_NAME).exists() else None
    if path is None:
        return truncate(rng, folder)
    raw = bytearray(path.read_bytes())
    place = rng.randrange(path.stat().st_size)
    raw[place] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    return f"a bit of byte {place} of {path.name}"


def change_header(rng: random.Random, folder: Path) -> str:
    """A tensor's entry in a header, as if the file had been written so."""
    path = rng.choice(sorted(folder.glob("*.safetensors")))
    raw = path.read_bytes()
    num_bytes = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + num_bytes])
    name = rng.choice(sorted(header.keys() - {"__metadata__"}))
    entry, start, stop = header[name], *header[name]["data_offsets"]
    changes: list[Callable[[], object]] = [
        lambda: entry.update(shape=[*entry["shape"], 2]),
        lambda: entry.update(shape=[size + 1 for size in entry["shape"]]),
        lambda: entry.update(shape=entry["shape"][::-1] if len(set(entry["shape"])) > 1 else [0]),
        lambda: entry.update(shape=[-size for size in entry["shape"]]),
        lambda: entry.update(shape="x"),
        lambda: entry.update(dtype=rng.choice(["F8_E4M3", "I64", "BOOL", 7, "U8" if entry["dtype"] != "U8" else "I8"])),
        lambda: entry.update(data_offsets=[start + 1, stop + 1]),
        lambda: entry.update(data_offsets=[stop, start - 1]),
        lambda: entry.update(data_offsets=[0, 10**30]),
        lambda: header.pop(name),
        lambda: header.update({f"../{name}": header.pop(name)}),
        lambda: header.update({"": header.pop(name)}),
    ]
    number = rng.randrange(len(changes))
    changes[number]()
    body = json.dumps(header).encode()
    rewrite(path, len(body).to_bytes(8, "little") + body + raw[8 + num_bytes :])
    return f"change {number} of {name} in {path.name}"


def rewrite(path: Path, raw: bytes) -> None:
    """Write a file, with its size and digest in the manifest where there is one."""
    path.write_bytes(raw)
    manifest = path.parent / MANIFEST_NAME
    if manifest.exists():
        values = json.loads(manifest.read_text())
        number = int(path.stem.removeprefix("rank-"))
        values["ranks"][number] = {"num_bytes": len(raw), "sha256": sha256(raw).hexdigest()}
        manifest.write_text(json.dumps(values))


def change_json(rng: random.Random, folder: Path) -> str:
    """A value of the manifest, or of a packed folder's quantization_config."""
    is_prepared = (folder / MANIFEST_NAME).exists()
    path = folder / (MANIFEST_NAME if is_prepared else "config.json")
    values = json.loads(path.read_text())
    within = values
    keys = ["version", "dtype", "group_size", "ranks", "plan", "weights"]
    if not is_prepared:
        within = values["quantization_config"]
        keys = ["quant_method", "bits", "group_size", "zero_point", "version"]
    key = rng.choice(keys)
    within[key] = rng.choice(["../../etc/passwd", "", -1, 0, 10**40, 3.5, [], {}, [None], [[]], {"a": 1}])
    path.write_text(json.dumps(values))
    return f"{key} {within[key]!r} in {path.name}"


def name_a_shard(rng: random.Random, folder: Path) -> str:
    """An index that leads out of the folder, or to nothing."""
    if (folder / MANIFEST_NAME).exists():
        return take_away(rng, folder)
    shard = rng.choice(["../model.safetensors", "/etc/passwd", "model-2.safetensors", "a/b.safetensors", "", 7])
    (folder / SINGLE).rename(folder / "model-1.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    return f"an index that names {shard!r}"


OFTEN: Final = (truncate, truncate, truncate, change_header, change_header)
DAMAGES: Final = (*OFTEN, flip, take_away, change_json, name_a_shard)


def damaged(rng: random.Random, good: Path, folder: Path) -> str:
    copytree(good / rng.choice(["prepared", "packed"]), folder)
    return rng.choice(DAMAGES)(rng, folder)


def test_good_folders_are_read(good: Path) -> None:
    assert read_all(good / "prepared") == "loaded"
    assert read_all(good / "packed") == "loaded"


@pytest.mark.parametrize("seed", range(NUM_DAMAGED))
def test_a_damaged_folder_is_refused_by_name(seed: int, good: Path, tmp_path: Path) -> None:
    what = damaged(random.Random(seed), good, tmp_path / "x")
    line = read_all(tmp_path / "x")
    assert str(tmp_path / "x") in line, f"{what}: {line}"
    assert "\n" not in line, what


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_damaged_folders_are_refused_soon(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worst_s = 0.0
    for seed in range(10_000, 10_000 + NUM_MANY):
        folder = tmp_path / str(seed)
        what = damaged(random.Random(seed), good, folder)
        line, seconds = forked(lambda folder=folder: read_all(folder))  # type: ignore[misc]
        assert str(folder) in line, f"{seed}, {what}: {line}"
        assert "\n" not in line, what
        worst_s = max(worst_s, seconds)
        assert seconds < MAX_S, f"{seed}, {what}: {seconds:.2f} s"
        rmtree(folder)
    with capsys.disabled():
        sys.stdout.write(f"\n{NUM_MANY} refused, each within {worst_s:.2f} s\n")
