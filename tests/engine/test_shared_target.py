"""A target shared by real processes writes the text of one process, and says which one was lost."""

import _thread
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from forerun.backends.choose import runs_native
from forerun.backends.cpu import host_group
from forerun.core.config import DTypeName, EngineConfig, SamplingParams
from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, Parallel, PromptLookup
from forerun.core.errors import ConfigError, RankLostError
from forerun.engine.engine import Engine

NUM_LOST = 200
PROMPT = "def read(path):\n    return"
NATIVE = pytest.mark.skipif(not runs_native(torch.float32, "cpu"), reason="no native kernels")
GREEDY = SamplingParams(max_new_tokens=24)
DRAWN = SamplingParams(max_new_tokens=24, temperature=0.9, top_p=0.9, seed=5)


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


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_write_the_text_of_one_process(num_ranks: int, plain: list[str]) -> None:
    assert texts(num_ranks, PromptLookup()) == plain


@pytest.mark.slow
def test_a_drafter_in_a_process_of_its_own_changes_no_token_of_several_ranks(plain: list[str]) -> None:
    assert texts(2, Parallel(draft=DraftModel())) == plain


@NATIVE
@pytest.mark.parametrize(
    ("weights", "drafter"),
    [
        ("stored", PromptLookup()),
        *(
            pytest.param(weights, drafter, marks=pytest.mark.slow)
            for weights in ("stored", "int8", "int4")
            for drafter in (DraftModel(), Parallel(draft=DraftModel()))
        ),
    ],
)
def test_rows_of_several_ranks_are_exact(weights: str, drafter: DrafterConfig) -> None:
    plain = texts(2, NoDrafter(), "bfloat16", weights=weights)
    assert texts(2, drafter, "bfloat16", weights=weights, exactness="exact") == plain


@pytest.fixture(params=[pytest.param("float64", marks=pytest.mark.slow), pytest.param("float32", marks=NATIVE)])
def shared(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine(2, NoDrafter(), request.param) as one:
        one.generate(PROMPT, GREEDY)
        yield one


def followers_of_this_process() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "--role" in child.cmdline()]


def follower_of_this_process() -> psutil.Process:
    (found,) = followers_of_this_process()
    return found


@pytest.mark.parametrize("is_at_work", [True, False])
def test_a_killed_rank_is_named_within_a_second(shared: Engine, is_at_work: bool) -> None:
    follower = follower_of_this_process()
    stream = iter(shared.stream(PROMPT, SamplingParams(max_new_tokens=400, ignore_eos=True)))
    if is_at_work:
        next(stream)
    began = time.monotonic()
    follower.kill()
    with pytest.raises(RankLostError, match=rf"rank 1 of the target \(pid {follower.pid}\) ended with signal 9"):
        list(stream)
    assert time.monotonic() - began < 5.0  # about 0.1 s on a machine with nothing else to do
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


def test_ctrl_c_leaves_all_ranks_with_the_same_cache(shared: Engine, plain: list[str]) -> None:
    rng = random.Random(1)
    for number in range(12):
        timer = threading.Timer(rng.uniform(0.0, 0.05), _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            write_on(shared, PROMPT + " x" * number)
        timer.join()
        assert shared.generate(PROMPT, GREEDY).text == plain[0]


def write_on(one: Engine, prompt: str) -> None:
    """One text after another."""
    while True:
        one.generate(prompt, SamplingParams(max_new_tokens=200, ignore_eos=True), owner="another")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_many_ranks_are_lost_in_the_midst_of_work(sent: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_group, "DEADLINE_S", 1.0)
    rng = random.Random(int(sent))
    files = psutil.Process().num_fds()
    for _ in range(NUM_LOST):
        with engine(rng.choice([2, 3]), NoDrafter(), "float32", max_length=1024) as one:
            lost = rng.choice(followers_of_this_process())
            timer = threading.Timer(rng.uniform(0.0, 0.2), os.kill, (lost.pid, sent))
            timer.start()
            began = time.monotonic()
            with pytest.raises(RankLostError, match=rf"rank \d of the target \(pid {lost.pid}\)"):
                write_two(one)
            assert time.monotonic() - began < 10.0
            timer.join()
    assert followers_of_this_process() == []
    assert psutil.Process().num_fds() <= files + 1  # the last engine's memory


def write_two(one: Engine) -> None:
    """A long text, and another one should the first have come to its end."""
    one.generate(PROMPT, SamplingParams(max_new_tokens=-1, ignore_eos=True))
    one.generate(PROMPT, GREEDY)


def test_no_rank_outlives_its_engine(shared: Engine) -> None:
    follower = follower_of_this_process()
    shared.close()
    assert not follower.is_running()


def test_a_rank_that_cannot_be_made_ready_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_MAX_LENGTH", "no number")  # which only processes of the command line read
    with pytest.raises(RankLostError, match=r"rank 1 of the target \(pid \d+\) ended with status 2"):
        engine(2, NoDrafter())


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="target_ranks 0"):
        EngineConfig(target_ranks=0)
