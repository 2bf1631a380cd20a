"""A run of the bench that is killed again and again: no answer is lost or doubled, and none is another one."""

import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.bench.records.answers import Match
from forerun.bench.run import session
from forerun.bench.run.ceilings import measure_ceilings
from forerun.cli.main import app
from tests.bench.players import keys_in, records_in

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--drafters", "none,draft_model,prompt_lookup", "--num-prompts", "3", "--repeats", "2", "-n", "8",
    "--threads", "1", "--max-length", "256",
)  # fmt: skip
NUM_KILLS = 100
NUM_ANSWERS = 3 * 2 * 3
LOOK_S = 0.001
HANG_S = 120.0
ONE_GROUP_S = 0.3  # about the time in which everybody answers a question
WRITING_S = 0.004  # about the time in which the answers to a question are written

logger = logging.getLogger(__name__)


@contextmanager
def started(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real run in this folder, which ends with the block at the latest."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    environment = kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "forerun", "bench", "run", "--out", str(path), *FLAGS]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_in(path: Path) -> dict[str, list[bytes]]:
    """The whole lines of every file of records."""
    return {
        file.name: [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        for file in path.glob("*/*.jsonl")
    }


def num_lines(path: Path) -> int:
    return sum(map(len, lines_in(path).values()))


def finish(path: Path) -> None:
    """Run without a kill."""
    with started(path) as process:
        _, said = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, said.decode()


def was_killed(path: Path, rng: random.Random) -> bool:
    """Run, and kill some time after the first new answer; False if the run was over by then.

    Half of the kills fall close behind the first line of a question, while the others' lines are written.
    """
    before, end = num_lines(path), time.monotonic() + HANG_S
    delay_s = rng.uniform(0.0, rng.choice((ONE_GROUP_S, WRITING_S)))
    with started(path) as process:
        while num_lines(path) == before and process.poll() is None:
            assert time.monotonic() < end, "no answer came"
            time.sleep(LOOK_S)
        time.sleep(delay_s)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr and process.stderr.read().decode()
            return False
    return True


def play_and_kill(path: Path, rng: random.Random, most: int) -> int:
    """Start the run until it is over, with so many kills at most; how many there were."""
    num_kills, before = 0, lines_in(path)
    while num_kills < most and was_killed(path, rng):
        num_kills += 1
        after = lines_in(path)
        counts = [len(lines) for lines in after.values()]
        logger.info("kill %d at %s lines%s", num_kills, counts, ", a question half written" * (len(set(counts)) > 1))
        assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "what was there stays"
        assert len(set(keys_in(path))) == len(keys_in(path)) < NUM_ANSWERS + 1
        before = after
    finish(path)
    return num_kills


def ids_in(path: Path) -> dict[tuple[object, ...], tuple[int, ...]]:
    return {
        (name, record.question_id, record.repeat): record.turns[0].token_ids
        for name, records in records_in(path).items()
        for record in records
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never killed, in this process."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FORERUN_")]:
            patch.delenv(name)
        patch.setattr(session, "measure_ceilings", partial(measure_ceilings, budget_s=0.01, cache_bytes=1 << 20))
        finished = CliRunner().invoke(app, ["bench", "run", "--out", str(path), *FLAGS])
    assert finished.exit_code == 0, finished.output
    assert len(keys_in(path)) == NUM_ANSWERS
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="a kill is another thing there")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_loses_no_answer_and_doubles_none(tmp_path: Path, whole: Path) -> None:
    rng, num_left = random.Random(NUM_KILLS), NUM_KILLS
    for number in range(NUM_KILLS):
        path = tmp_path / str(number)
        num_left -= play_and_kill(path, rng, num_left)
        assert keys_in(path) == keys_in(whole)
        assert ids_in(path) == ids_in(whole)
        matches = [turn.match for records in records_in(path).values() for record in records for turn in record.turns]
        assert matches == [Match(first_difference=None)] * NUM_ANSWERS
        if not num_left:
            return
    pytest.fail(f"{num_left} of {NUM_KILLS} kills came too late in {NUM_KILLS} runs")
