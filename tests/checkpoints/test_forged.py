"""Whatever is forged in a checkpoint, it is refused with one line, or does no harm; soon, and in little memory."""

import sys
from collections import Counter
from pathlib import Path
from shutil import rmtree

import pytest

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.source import CheckpointSource
from forerun.checkpoints.stored_weights import StoredWeights
from forerun.core.config import EngineConfig
from forerun.core.errors import CheckpointError
from forerun.engine.model_loading import Checkpoint
from tests.checkpoints.cost import cost, outcome
from tests.checkpoints.folders import write_config
from tests.checkpoints.forging import Forger

NUM_FORGED = 30
NUM_REFUSED = 2000
MAX_S = 1.0
MAX_BYTES = 50 * 10**6


def opened(folder: Path) -> HuggingFaceFolder:
    return HuggingFaceFolder(name=str(folder), folder=folder)


def read_weights(source: CheckpointSource, checkpoint: Checkpoint) -> None:
    weights = source.weights(dtype=checkpoint.dtype)
    assert isinstance(weights, StoredWeights)
    for name in weights.names:
        weights.tensor(name)


def test_forged_checkpoints_are_refused_in_one_line_or_do_no_harm(tmp_path: Path) -> None:
    forger = Forger(tmp_path, seed=1)
    for number in range(NUM_FORGED):
        folder = tmp_path / str(number)
        what = forger.forge(folder)
        line = outcome(opened(folder), read_weights)
        assert "\n" not in line, what
        assert len(line) < 2000, what
        rmtree(folder)


@pytest.mark.parametrize("num_layers", [10**9, 10**300])
def test_more_layers_than_any_model_has_are_refused_by_the_config_alone(tmp_path: Path, num_layers: int) -> None:
    with pytest.raises(CheckpointError, match=r"num_hidden_layers is 1000.*from 1 to 1024"):
        Checkpoint.open(
            HuggingFaceFolder(name="x", folder=write_config(tmp_path, num_hidden_layers=num_layers)),
            EngineConfig(target="x"),
        )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_forged_checkpoints_cost_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory is counted above what a good checkpoint of this size takes; tokenizer.json is parsed by a library."""
    forger = Forger(tmp_path, seed=2)
    counts = Counter[str]()
    good = opened(tmp_path / "single")
    assert outcome(good, read_weights) == "loaded"  # so that every child finds all libraries loaded
    usual_bytes = cost(good, read_weights)[2]
    worst_s = 0.0
    worst_bytes = 0
    while counts["refused"] < NUM_REFUSED:
        folder = tmp_path / "forged"
        what = forger.forge(folder)
        status, seconds, num_bytes = cost(opened(folder), read_weights)
        extra_bytes = num_bytes - usual_bytes
        assert status in ("refused", "loaded"), f"{what}: {status}"
        assert seconds < MAX_S, f"{what}: {seconds:.2f} s"
        assert extra_bytes < MAX_BYTES or what.startswith("tokenizer.json"), f"{what}: {extra_bytes / 1e6:.1f} MB"
        counts[status] += 1
        worst_s = max(worst_s, seconds)
        worst_bytes = max(worst_bytes, extra_bytes)
        rmtree(folder)
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(counts)}; at most {worst_s:.2f} s and {worst_bytes / 1e6:.1f} MB\n")
