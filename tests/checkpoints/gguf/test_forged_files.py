"""Whatever is forged in a GGUF file, it is refused with one line, or read as the format's own package reads it."""

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import gguf
import pytest

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.parts import read_model
from forerun.checkpoints.source import CheckpointSource
from forerun.engine.model_loading import Checkpoint
from tests.checkpoints.cost import cost, outcome
from tests.checkpoints.gguf.forging import GgufForger

NUM_FORGED = 24
NUM_FORGED_SLOW = 3000
MAX_S: Final = 5.0
MAX_EXTRA_BYTES: Final = 100 * 10**6  # beyond the file's size and what a good file takes


def opened(path: Path) -> GgufCheckpoint:
    return GgufCheckpoint(name=str(path), path=path)


def read_weights(source: CheckpointSource, checkpoint: Checkpoint) -> None:
    """Every weight, as an engine takes them."""
    weights = source.weights(dtype=checkpoint.dtype)
    for layer in range(checkpoint.spec.num_layers):
        for name in ("qkv", "attention_out", "gate_up", "mlp_out"):
            weights.linear(f"layers.{layer}.{name}")
        for name in ("attention_norm", "mlp_norm", *(("q_norm", "k_norm") if checkpoint.spec.qk_norm else ())):
            weights.vector(f"layers.{layer}.{name}")
    weights.linear("head")
    weights.table()


def require_read_rightly(path: Path, what: str) -> None:
    """Metadata and places of tensors are those that the package finds; numbers that are not equal to themselves too."""
    file = read_model(path)
    reference = gguf.GGUFReader(path)
    theirs = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    ours = {key: list(value) if isinstance(value, tuple) else value for key, value in file.metadata.items()}
    assert repr(sorted(ours.items())) == repr(sorted(theirs.items())), what
    places = {
        tensor.name: (tensor.data_offset, tensor.n_bytes, tuple(map(int, tensor.shape[::-1])), tensor.tensor_type.name)
        for tensor in reference.tensors
    }
    found = {name: (item.offset, item.num_bytes, item.shape, item.dtype) for name, item in file.tensors.items()}
    assert found == places, what


def test_forged_files_are_refused_in_one_line_or_read_rightly(tmp_path: Path) -> None:
    forger = GgufForger(tmp_path, seed=1)
    path = tmp_path / "forged.gguf"
    counts = Counter[str]()
    for good in forger.good:
        assert outcome(opened(good), read_weights) == "loaded"
    for _ in range(NUM_FORGED):
        what = forger.forge(path)
        line = outcome(opened(path), read_weights)
        assert "\n" not in line, what
        assert len(line) < 2000, what
        counts["loaded" if line == "loaded" else "refused"] += 1
        if line == "loaded":
            require_read_rightly(path, what)
    assert min(counts.values()) > 2, "both must occur, or little is tested"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_forged_files_cost_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forger = GgufForger(tmp_path, seed=2)
    path = tmp_path / "forged.gguf"
    counts = Counter[str]()
    usual_bytes = max(cost(opened(good), read_weights)[2] for good in forger.good * 2)
    worst_s = 0.0
    worst_bytes = 0
    for _ in range(NUM_FORGED_SLOW):
        what = forger.forge(path)
        status, seconds, num_bytes = cost(opened(path), read_weights)
        extra_bytes = num_bytes - usual_bytes - path.stat().st_size
        assert status in ("refused", "loaded"), f"{what}: {status}"
        assert seconds < MAX_S, f"{what}: {seconds:.2f} s"
        assert extra_bytes < MAX_EXTRA_BYTES, f"{what}: {extra_bytes / 1e6:.1f} MB beyond the file's size"
        if status == "loaded":
            require_read_rightly(path, what)
        counts[status] += 1
        worst_s = max(worst_s, seconds)
        worst_bytes = max(worst_bytes, extra_bytes)
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(counts)}; at most {worst_s:.2f} s and {worst_bytes / 1e6:.1f} MB beyond the file\n")
