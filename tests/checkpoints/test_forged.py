"""Whatever is forged in a checkpoint, it is refused with one line, or does no harm; soon, and in little memory."""

import os
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path
from shutil import rmtree
from time import process_time

import pytest

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.cli.sheet import read_sheet
from forerun.core.config import EngineConfig
from forerun.core.errors import CheckpointError, ForerunError
from forerun.engine.model_loading import Checkpoint, resolve_max_length
from tests.checkpoints.folders import write_config
from tests.checkpoints.forging import Forger

NUM_FORGED, NUM_REFUSED = 150, 2000
MAX_S, MAX_BYTES = 1.0, 50 * 10**6
KIBIBYTE = 1024  # what ru_maxrss counts in


def open_all(folder: Path) -> None:
    """Everything an engine reads of a checkpoint, in its order."""
    config = EngineConfig(target=str(folder))
    source = HuggingFaceFolder(name=str(folder), folder=folder)
    checkpoint = Checkpoint.open(source, config)
    resolve_max_length(config, checkpoint.spec)
    for read in (source.tokenizer, source.stop_ids, source.default_sampling, source.identity):
        read()
    source.weights(dtype=checkpoint.dtype)


def outcome(folder: Path) -> str:
    """ "loaded", or the line that refuses it."""
    read_sheet(HuggingFaceFolder(name="forged", folder=folder))
    try:
        open_all(folder)
    except ForerunError as error:
        return str(error)
    return "loaded"


def test_forged_checkpoints_are_refused_in_one_line_or_do_no_harm(tmp_path: Path) -> None:
    forger = Forger(tmp_path, seed=1)
    for number in range(NUM_FORGED):
        folder = tmp_path / str(number)
        what = forger.forge(folder)
        line = outcome(folder)
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
    forger, counts = Forger(tmp_path, seed=2), Counter[str]()
    assert outcome(tmp_path / "single") == "loaded"  # so that every child finds all libraries loaded
    usual_bytes = cost(tmp_path / "single")[2]
    worst_s, worst_bytes = 0.0, 0
    while counts["refused"] < NUM_REFUSED:
        folder = tmp_path / "forged"
        what = forger.forge(folder)
        status, seconds, num_bytes = cost(folder)
        extra_bytes = num_bytes - usual_bytes
        assert status in ("refused", "loaded"), f"{what}: {status}"
        assert seconds < MAX_S, f"{what}: {seconds:.2f} s"
        assert extra_bytes < MAX_BYTES or what.startswith("tokenizer.json"), f"{what}: {extra_bytes / 1e6:.1f} MB"
        counts[status] += 1
        worst_s, worst_bytes = max(worst_s, seconds), max(worst_bytes, extra_bytes)
        rmtree(folder)
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(counts)}; at most {worst_s:.2f} s and {worst_bytes / 1e6:.1f} MB\n")


def cost(folder: Path) -> tuple[str, float, int]:
    """What becomes of a checkpoint in a process of its own, its CPU seconds and the memory above the start."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
        status = "traceback"
        try:
            status = "loaded" if outcome(folder) == "loaded" else "refused"
        finally:
            if status == "traceback":
                traceback.print_exc()
            num_bytes = KIBIBYTE * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            os.write(writing, f"{status} {process_time() - began} {num_bytes}".encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        status, seconds, num_bytes = (pipe.read() or "killed 0 0").split()
    os.waitpid(pid, 0)
    return status, float(seconds), int(num_bytes)
