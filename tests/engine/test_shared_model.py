"""A model shared by real processes writes the text of one process, and says which one was lost."""

import _thread
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from forerun.backends.cpu import host_group
from forerun.backends.dtypes import runs_native
from forerun.core.config import DTypeName, EngineConfig, KernelsName, SamplingParams
from forerun.core.drafter_config import (
    DrafterConfig,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    paper_layer_skip,
)
from forerun.core.errors import ConfigError, RankLostError
from forerun.core.sublayers import SkipSet
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.engine.engine import Engine
from tests.marks import in_turn, rest_slow
from tests.patience import drafted_answer

START_S = 120.0
END_S = 150.0
PROMPT = "def read(path):\n    return"
NATIVE = pytest.mark.skipif(not runs_native("float32", "cpu"), reason="no native kernels")
GREEDY = SamplingParams(max_new_tokens=12)
UNCLOSED = """
import logging
import psutil
from forerun import Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
logging.disable()  # a drafter's process warns of too few cores
one = Engine(EngineConfig(drafter={drafter}, target_ranks=2, num_threads=1, max_length=128))
one.drafting.wait_until_ready(120.0)
one.generate("Once", SamplingParams(max_new_tokens=4))
print(*(child.pid for child in psutil.Process().children(recursive=True)))
"""
LONG = SamplingParams(max_new_tokens=64, ignore_eos=True)  # past the window of the paper's search
DRAWN = SamplingParams(max_new_tokens=12, temperature=0.9, top_p=0.9, seed=5)


def engine(num_ranks: int, drafter: DrafterConfig, dtype: DTypeName = "float64", **settings: Any) -> Engine:
    """Of torch's kernels and gloo in float64, of native ones and shared memory in other dtypes."""
    return Engine(EngineConfig(drafter=drafter, target_ranks=num_ranks, dtype=dtype, num_threads=1, **settings))


def texts(num_ranks: int, drafter: DrafterConfig, dtype: DTypeName = "float64", **settings: Any) -> list[str]:
    """Greedy, drawn, and greedy again after another owner's text, so that saved texts are used."""
    with engine(num_ranks, drafter, dtype, **settings) as one:
        asked = [(GREEDY, ""), (DRAWN, "another"), (GREEDY, "")]
        return [one.generate(PROMPT, params, owner=owner).text for params, owner in asked]


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return texts(1, NoDrafter())


@pytest.mark.parametrize("num_ranks", rest_slow([2, 3], 1))
def test_ranks_write_the_text_of_one_process(num_ranks: int, plain: list[str]) -> None:
    assert texts(num_ranks, PromptLookup()) == plain


@pytest.mark.slow
@pytest.mark.parametrize("num_draft", [1, 2])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ranks_of_target_and_draft_write_the_plain_text(dtype: DTypeName, kernels: KernelsName, num_draft: int) -> None:
    plain = texts(2, NoDrafter(), dtype, kernels=kernels, exactness="exact")
    assert texts(2, Parallel(ranks=num_draft), dtype, kernels=kernels, exactness="exact") == plain


SELF_DRAFTERS = {
    "off": LayerSkip(search="off", adaptive=False),
    "gated": LayerSkip(adaptive=False),
    "paper": paper_layer_skip(),
}


def drafted_by_itself(num_ranks: int, name: str) -> tuple[list[str], SkipSet]:
    """Texts, greedy and drawn, and the set in use after them. The gated search follows the clock, so its sets are
    compared in `test_self_drafting`."""
    with engine(num_ranks, SELF_DRAFTERS[name], "float32", max_length=256) as one:
        found = []
        for params in (LONG, replace(LONG, temperature=0.9, top_p=0.9, seed=5)):
            result = one.generate(PROMPT, params)
            assert result.stats.num_accepted > 0
            found.append(result.text)
        own = one.drafting.held["layer_skip"]
        assert isinstance(own, LayerSkipDrafter)
        return found, frozenset() if name == "gated" else own.search.strategy.skipped


@NATIVE
@pytest.mark.parametrize(("name", "num_ranks"), in_turn(["paper", "gated", "off"], [2, 3], 1))
def test_a_target_shared_by_processes_drafts_for_itself(name: str, num_ranks: int) -> None:
    assert drafted_by_itself(num_ranks, name) == drafted_by_itself(1, name)


@NATIVE
def test_a_draft_shared_by_processes_drafts_and_all_of_them_end_with_the_engine() -> None:
    plain = texts(1, NoDrafter(), "float32")
    with engine(1, Parallel(ranks=2), "float32") as one:
        assert one.drafting.wait_until_ready(START_S)
        ranks = draft_ranks(one)
        assert len(ranks) == 2
        assert drafted_answer(one, PROMPT, GREEDY).text == plain[0]
    assert psutil.wait_procs(ranks, END_S)[1] == []


@pytest.fixture(params=[pytest.param("float64", marks=pytest.mark.slow), pytest.param("float32", marks=NATIVE)])
def shared(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine(2, NoDrafter(), request.param) as one:
        one.generate(PROMPT, GREEDY)
        yield one


def followers_of_this_process() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "--role" in child.cmdline()]


def draft_ranks(one: Engine) -> list[psutil.Process]:
    """The drafter's process, which leads, and those that follow it."""
    assert one.drafter_pid is not None
    leader = psutil.Process(one.drafter_pid)
    return [leader, *leader.children()]


def follower_of_this_process() -> psutil.Process:
    (found,) = followers_of_this_process()
    return found


@pytest.mark.parametrize("is_at_work", rest_slow([True, False], 1))
def test_a_killed_rank_is_named_long_before_the_deadline(shared: Engine, is_at_work: bool) -> None:
    follower = follower_of_this_process()
    stream = iter(shared.stream(PROMPT, SamplingParams(max_new_tokens=400, ignore_eos=True)))
    if is_at_work:
        next(stream)
    began = time.monotonic()
    follower.kill()
    with pytest.raises(RankLostError, match=rf"rank 1 of the target \(pid {follower.pid}\) ended with signal 9"):
        list(stream)
    assert time.monotonic() - began < host_group.DEADLINE_S / 2  # about 0.1 s on a machine with nothing else to do
    assert not follower.is_running()


@NATIVE
def test_a_stopped_rank_is_named_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_group, "DEADLINE_S", 1.0)
    with engine(2, NoDrafter(), "float32") as one:
        follower = follower_of_this_process()
        os.kill(follower.pid, signal.SIGSTOP)
        with pytest.raises(RankLostError, match=r"rank 1 of the target .* is stopped"):
            one.generate(PROMPT, GREEDY)
        assert not follower.is_running()


@pytest.mark.parametrize("num_interrupts", rest_slow([2, 8], 1))
def test_ctrl_c_leaves_all_ranks_with_the_same_cache_and_none_outlives_its_engine(
    shared: Engine, plain: list[str], num_interrupts: int
) -> None:
    rng = random.Random(num_interrupts)
    for number in range(num_interrupts):
        timer = threading.Timer(rng.uniform(0.0, 0.05), _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            write_on(shared, PROMPT + " x" * number)
        timer.join()
        assert shared.generate(PROMPT, GREEDY).text == plain[0]
    follower = follower_of_this_process()
    shared.close()
    assert not follower.is_running()


@NATIVE
@pytest.mark.slow  # by default test_parallel, for a drafter's process
@pytest.mark.parametrize("drafter", ["NoDrafter()", "Parallel(ranks=2)"])
def test_a_process_ends_well_with_an_engine_that_was_not_closed(drafter: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED.format(drafter=drafter)], capture_output=True, text=True, timeout=START_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) >= (1 if drafter == "NoDrafter()" else 3)
    until = time.monotonic() + END_S
    while any(map(psutil.pid_exists, children)) and time.monotonic() < until:  # a draft's rank ends after its leader
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, children))


def write_on(one: Engine, prompt: str) -> None:
    """One text after another."""
    while True:
        one.generate(prompt, SamplingParams(max_new_tokens=200, ignore_eos=True), owner="another")


def test_a_rank_that_cannot_be_made_ready_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_MAX_LENGTH", "no number")  # which only processes of the command line read
    files: list[int] = []
    for _ in range(2):
        with pytest.raises(RankLostError, match=r"rank 1 of the target \(pid \d+\) ended with status 2"):
            engine(2, NoDrafter(), "float32")
        gc.collect()
        files.append(psutil.Process().num_fds())
    assert files[-1] <= files[0]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="target_ranks 0"):
        EngineConfig(target_ranks=0)
    with pytest.raises(ConfigError, match="ranks 0 of a draft"):
        Parallel(ranks=0)
    with pytest.raises(ConfigError, match="forerun worker --ranks"):
        Parallel(ranks=2, address="127.0.0.1:7070")
    with pytest.raises(ConfigError, match="or a draft model"):
        Parallel(ranks=2, draft=LayerSkip())
    with pytest.raises(ConfigError, match="drafts with its own weights"):
        EngineConfig(target_ranks=2, drafter=LayerSkip(weights="int4"))
    with pytest.raises(ConfigError, match="remote_ranks 2 must lie"):
        EngineConfig(target_ranks=2, remote_ranks=2, rank_address="127.0.0.1:0")
    for settings in ({"remote_ranks": 1}, {"rank_address": "127.0.0.1:0"}):
        with pytest.raises(ConfigError, match="go together"):
            EngineConfig(target_ranks=2, **settings)
    with pytest.raises(ConfigError, match="rank_key_file"):
        EngineConfig(rank_key_file="key")
