"""A peer's process may print, refuse, die or hang: the one that measures gets an answer or an error that says why."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from forerun import SamplingParams
from forerun_lab.bench.peers.messages import PeerError, PeerPlan
from forerun_lab.bench.peers.process import ProcessPeer

COMMAND = (sys.executable, str(Path(__file__).with_name("bad_child.py")))
PARAMS = SamplingParams(max_new_tokens=3)


def plan_of(mode: str) -> PeerPlan:
    return PeerPlan(target="target", dtype="float32", num_threads=1, max_length=16, mode=mode)


@contextmanager
def puppet(mode: str, *, answer_s: float = 60.0) -> Iterator[ProcessPeer]:
    peer = ProcessPeer("puppet", COMMAND, plan_of(mode), start_s=60.0, answer_s=answer_s)
    try:
        yield peer
    finally:
        peer.close()


@pytest.mark.parametrize("mode", ["is good", "prints"])
def test_an_answer_comes_back_whatever_is_printed_meanwhile(mode: str) -> None:
    with puppet(mode) as peer:
        for _ in range(2):
            turn = peer.write((1, 2, 3), PARAMS)
            assert (turn.token_ids, turn.emitted, turn.num_prompt_tokens) == ((3, 2, 1), (2, 1), 3)
            assert turn.wall_s == turn.emitted_at_s[-1] > 0.0
            peer.forget()


@pytest.mark.parametrize(("mode", "words"), [("dies", "the disk is on fire"), ("raises", "RuntimeError: out of luck")])
def test_a_process_that_dies_is_an_error_with_its_last_words(mode: str, words: str) -> None:
    with puppet(mode) as peer:
        with pytest.raises(PeerError, match=words):
            peer.write((1, 2, 3), PARAMS)
        with pytest.raises(PeerError, match="ended with status"):
            peer.write((1, 2, 3), PARAMS)


def test_a_process_that_hangs_is_stopped_with_all_it_started() -> None:
    began = monotonic()
    with puppet("hangs", answer_s=1.0) as peer, pytest.raises(PeerError, match="no answer within 1 s") as caught:
        peer.write((1, 2, 3), PARAMS)
    assert monotonic() - began < 30.0
    found = re.search(r"helper (\d+)", str(caught.value))
    assert found is not None
    assert wait_until_gone(int(found[1]))


def test_a_refusal_is_an_error_and_the_process_goes_on() -> None:
    with puppet("refuses") as peer:
        with pytest.raises(PeerError, match="puppet: not now"):
            peer.write((1, 2, 3), PARAMS)
        assert peer.write((1, 2, 3), PARAMS).token_ids == (3, 2, 1)


@pytest.mark.parametrize(
    ("mode", "words"), [("refuses to open", "puppet: I will not"), ("dies early", "RuntimeError: no such luck")]
)
def test_a_process_that_does_not_start_says_why(mode: str, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        ProcessPeer("puppet", COMMAND, plan_of(mode))


def test_a_peer_ends_with_the_process_that_measures() -> None:
    code = (
        "import os; from tests.bench.peers.test_process import *\n"
        "print(ProcessPeer('puppet', COMMAND, plan_of('is good'))._child.pid, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert wait_until_gone(int(done.stdout)), done.stderr


def wait_until_gone(pid: int) -> bool:
    """Whether the process ends soon; one whose exit status nobody has collected has ended."""
    give_up = monotonic() + 30.0
    while monotonic() < give_up:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        sleep(0.02)
    return False
