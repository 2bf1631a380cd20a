"""A distillation that is killed again and again: it goes on each time, and loses no more than the last interval."""

import logging
import multiprocessing
import random
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import pytest

from forerun.core.config import EngineConfig
from forerun.distill.config import DistillConfig, DistillProgress
from forerun.distill.run import Distillation
from forerun.distill.run_place import RunLog, SavedDraft
from forerun.distill.text_store import TextStore

INTERVAL_S = 0.2
TIME_S = 12.0
AT_WORK_SHARE = 0.8  # of the kills come after the run has gone on; the others also hit its start
LONGEST_START_S = 2.5
HANG_S = 120.0

logger = logging.getLogger(__name__)


def asked(target: str, out: Path) -> DistillConfig:
    return DistillConfig(
        engine=EngineConfig(target=target, num_threads=1, max_length=256),
        out=out,
        time=TIME_S,
        layers=1,
        save_every_s=INTERVAL_S,
    )


def distil(config: DistillConfig, seen: "Synchronized[float]", longest: "Synchronized[float]") -> None:
    """Run in a process of its own, and tell how far it is, and how long it went without saying so."""
    said = time.perf_counter()

    def tell(progress: DistillProgress) -> None:
        nonlocal said
        if progress.doing != "what the draft brings is measured":
            seen.value = progress.seconds
            longest.value = max(longest.value, time.perf_counter() - said)
        said = time.perf_counter()

    Distillation(config).run(tell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What lies on disk, every file of it read."""

    seconds: float
    num_tokens: int
    num_learnt: int


def kept_in(out: Path) -> Kept:
    folder = out / "distill"
    store, saved = TextStore(folder / "texts"), SavedDraft(folder / "training.safetensors")
    texts = [*store.read(), *(left.read for left in store.unfinished())]
    trainer, trained_s = saved.open("cpu") if saved.exists else (None, 0.0)
    RunLog(folder / "log.jsonl").read()
    return Kept(
        seconds=store.seconds + trained_s,
        num_tokens=sum(len(text.token_ids) for text in texts),
        num_learnt=trainer.num_tokens if trainer is not None else 0,
    )


def wait_until_at_work(process: Any, seen: "Synchronized[float]") -> None:
    """Until the run has told how far it is, or is over."""
    before, end = seen.value, time.monotonic() + HANG_S
    while seen.value == before and process.exitcode is None:
        assert time.monotonic() < end, "the run does not begin"
        time.sleep(0.001)


def was_killed(context: Any, config: DistillConfig, rng: random.Random) -> bool:
    """Run for a random time, then kill; False if the run was over by then."""
    before = kept_in(config.out)
    seen, longest = context.Value("d", before.seconds), context.Value("d", 0.0)
    process = context.Process(target=distil, args=(config, seen, longest))
    process.start()
    if rng.random() < AT_WORK_SHARE:
        wait_until_at_work(process, seen)
        process.join(rng.uniform(0.0, 5 * INTERVAL_S))
    else:
        process.join(rng.uniform(0.0, LONGEST_START_S))
    process.kill()
    process.join(HANG_S)
    if process.exitcode == 0:
        return False
    assert process.exitcode == -signal.SIGKILL
    after = kept_in(config.out)
    assert after.seconds >= before.seconds
    assert after.num_tokens >= before.num_tokens or after.num_learnt > 0
    assert after.num_learnt >= before.num_learnt
    lost_s = seen.value - after.seconds
    logger.info("killed at %.1f s of the run, %.2f s of it are lost", seen.value, lost_s)
    assert lost_s <= INTERVAL_S + 2 * longest.value
    return True


def identical_texts(out: Path, target: str) -> tuple[int, int]:
    """Finish in this process: texts that every drafter wrote as none does, of how many."""
    report = Distillation(asked(target, out)).run(lambda progress: None)
    return sum(worth.num_identical for worth in report.worth), sum(worth.num_texts for worth in report.worth)


@pytest.mark.skipif(sys.platform == "win32", reason="a kill is another thing there")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_kills", [pytest.param(number, marks=pytest.mark.slow) for number in (3, 100)])
def test_a_run_that_is_killed_goes_on_and_loses_no_more_than_the_interval(
    tmp_path: Path, target: str, num_kills: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forerun.distill.run"])
    rng, num_left, runs = random.Random(num_kills), num_kills, 0
    while num_left:
        out, runs = tmp_path / str(runs), runs + 1
        config = asked(target, out)
        while num_left and was_killed(context, config, rng):
            num_left -= 1
        assert runs <= num_kills, "kills come too late"
    num_identical, num_texts = identical_texts(out, target)
    assert num_texts > 0
    assert num_identical == num_texts
