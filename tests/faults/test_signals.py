"""Real signals to the drafter's process, its forkserver and the engine: no token changes, nothing stays behind.

A thousand kills and hundreds of stops, with their gaps, are counted by forerun_lab.checks.drafter_faults.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun import DrafterState, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun.wires.children import process_state
from forerun.wires.worker_processes import LocalSupply
from tests.marks import rest_slow
from tests.patience import drafted_answer
from tests.varied import NO_FILLING

HANG_S = 150.0
PROMPT = "def read_lines(path):\n    "
GREEDY = SamplingParams(max_new_tokens=400, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=400, ignore_eos=True, temperature=1.0, seed=3)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")

HOLDER = """
import sys, time
from forerun import Engine, EngineConfig, Parallel
if __name__ == "__main__":
    engine = Engine(EngineConfig(drafter=Parallel(), num_threads=1))
    supply = engine.drafting.held["parallel"]._connection.supply
    print(supply._process.pid, supply.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        EngineConfig(drafter=Parallel(), device="paced:target=5ms", num_threads=1), policies=NO_FILLING
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as engine:
        yield engine


def supply_of(engine: Engine) -> LocalSupply:
    supply = engine.drafting.held["parallel"]._connection.supply  # type: ignore[attr-defined]
    assert isinstance(supply, LocalSupply)
    return supply


def is_alive(pid: int) -> bool:
    return process_state(pid)[0] not in ("", "Z", "X")


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + HANG_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, f"still there: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.01)


HARMS = [(signal.SIGKILL, GREEDY), (signal.SIGSTOP, SAMPLED), (signal.SIGSEGV, GREEDY), (signal.SIGTERM, SAMPLED)]


@pytest.mark.parametrize(
    ("harm", "params"), [HARMS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in HARMS[1:])]
)
def test_a_harmed_drafter_changes_no_token_and_comes_back(
    engine: Engine, plain: Engine, harm: signal.Signals, params: SamplingParams
) -> None:
    token_ids: list[int] = []
    states: list[DrafterState] = []
    for number, step in enumerate(engine.stream(PROMPT, params)):
        token_ids += step.token_ids
        states.append(step.stats.drafter)
        if number == 15:
            pid = supply_of(engine).pid
            os.kill(pid, harm)
            if harm is signal.SIGSTOP:
                threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
            else:
                wait_until_gone(pid)  # on a busy machine the text might end before
    assert tuple(token_ids) == plain.generate(PROMPT, params).token_ids
    away = DrafterState.LATE if harm is signal.SIGSTOP else DrafterState.DOWN
    assert away in states
    drafted_answer(engine, PROMPT, SamplingParams(max_new_tokens=40, ignore_eos=True))


def test_a_forkserver_that_is_killed_is_replaced(engine: Engine, plain: Engine) -> None:
    supply = supply_of(engine)
    first = supply._process.pid
    worker = supply.pid
    os.kill(first, signal.SIGKILL)
    wait_until_gone(worker)
    params = SamplingParams(max_new_tokens=100, ignore_eos=True)
    assert drafted_answer(engine, PROMPT, params).token_ids == plain.generate(PROMPT, params).token_ids
    assert supply._process.pid != first


@pytest.mark.parametrize("is_stopped", rest_slow([False, True], 1), ids=["running", "stopped"])
def test_nothing_outlives_an_engine_that_is_killed(tmp_path: Path, is_stopped: bool) -> None:
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        forkserver, worker = map(int, holder.stdout.readline().split())
        if is_stopped:
            os.kill(worker, signal.SIGSTOP)
            os.kill(forkserver, signal.SIGSTOP)
        holder.kill()
    wait_until_gone(forkserver, worker)
