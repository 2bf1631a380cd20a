"""Drafter processes that hang, die, lie or talk nonsense: real processes, and the text is the plain one."""

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.steps import DrafterState
from forerun.decoding.decoder import Round
from forerun.decoding.drafters import Drafters
from forerun.drafting.policies import RemotePolicy
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.wires.worker_processes import LocalSupply
from tests.marks import rest_slow
from tests.tiny import decode_rounds, plain_spec, random_weights, tiny_runner

SPEC = plain_spec()
PROMPT = [3, 1, 4, 1, 5]
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0)]
HANG_S = 60.0
SCRIPT = Path(__file__).with_name("bad_worker.py")


def target(capacity: int = 512):  # type: ignore[no-untyped-def]
    return tiny_runner(SPEC, random_weights(SPEC, torch.Generator().manual_seed(5)), capacity=capacity)


def ids_of(rounds: list[Round], num_tokens: int) -> list[int]:
    return [token for step in rounds for token in step.token_ids][:num_tokens]


@pytest.fixture
def drafter(request: pytest.FixtureRequest) -> Iterator[ParallelDrafter]:
    supply = LocalSupply(lambda descriptor, _: [sys.executable, str(SCRIPT), request.param, str(descriptor)])
    draft = DraftModel(verify_width=6, draft_width=4)
    policy = RemotePolicy(looks_up=False)
    made = ParallelDrafter(supply, draft, policy, target_vocab_size=SPEC.vocab_size, check=lambda _: None)
    yield made
    made.close()


KINDS = ["lying", "dying", "garbage", "silent", "wrong", "busy", "failing", "slow"]


@pytest.mark.parametrize("drafter", rest_slow(KINDS, 2), indirect=True)
def test_whatever_the_process_does_the_text_is_the_plain_one(drafter: ParallelDrafter) -> None:
    assert drafter.wait_until_ready(HANG_S)
    for params in PARAMS:
        plain = decode_rounds(target(), Drafters(), PROMPT, params, seed=7, num_tokens=300)
        ours = decode_rounds(target(), drafter, PROMPT, params, seed=7, num_tokens=300)
        assert ids_of(ours, 300) == ids_of(plain, 300)


@pytest.mark.parametrize("drafter", rest_slow(["silent", "slow", "busy"], 1), indirect=True)
def test_a_process_that_does_not_answer_is_waited_for_once(drafter: ParallelDrafter) -> None:
    assert drafter.wait_until_ready(HANG_S)
    rounds = decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=300)
    states = [step.stats.drafter for step in rounds]
    assert states.count(DrafterState.LATE) > len(states) / 2
    waits = [step.stats.wait_s for step in rounds]
    assert sum(wait > 0.004 for wait in waits) < len(waits) / 4, "most rounds go on without waiting"


@pytest.mark.parametrize("drafter", ["silent", "busy"], indirect=True)
@pytest.mark.slow  # in virtual time: test_wait_policy
def test_a_process_that_hangs_is_replaced(drafter: ParallelDrafter, caplog: pytest.LogCaptureFixture) -> None:
    assert drafter.wait_until_ready(HANG_S)
    first = drafter._connection.supply.pid  # type: ignore[attr-defined]
    end = time.monotonic() + HANG_S
    with caplog.at_level(logging.WARNING):
        while "hangs" not in caplog.text and time.monotonic() < end:
            decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=300)
        while drafter._connection.supply.pid == first and time.monotonic() < end:  # type: ignore[attr-defined]
            decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=20)
    assert drafter._connection.supply.pid != first  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["failing"], indirect=True)
def test_a_process_that_fails_is_heard_and_the_state_is_seen(
    drafter: ParallelDrafter, caplog: pytest.LogCaptureFixture
) -> None:
    assert drafter.wait_until_ready(HANG_S)
    with caplog.at_level(logging.WARNING):
        rounds = decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=300)
    assert "went up in smoke" in caplog.text
    assert "plain decoding continues" in caplog.text
    assert any(step.stats.drafter is DrafterState.DOWN for step in rounds)


@pytest.mark.parametrize("drafter", ["dying"], indirect=True)
def test_one_that_dies_again_and_again_is_given_up_for_a_while(
    drafter: ParallelDrafter, caplog: pytest.LogCaptureFixture
) -> None:
    assert drafter.wait_until_ready(HANG_S)
    end = time.monotonic() + HANG_S
    while "too often" not in drafter._connection.supply.trouble and time.monotonic() < end:
        decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=20)
    assert "tried again in 5 minutes" in drafter._connection.supply.trouble
    rounds = decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=20)
    assert {step.stats.drafter for step in rounds} == {DrafterState.DOWN}


@pytest.mark.parametrize("drafter", ["unready"], indirect=True)
def test_one_that_cannot_start_says_why_and_decoding_goes_on(
    drafter: ParallelDrafter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not drafter.wait_until_ready(HANG_S)
    assert "there is no such draft model" in caplog.text
    rounds = decode_rounds(target(), drafter, PROMPT, PARAMS[0], seed=7, num_tokens=20)
    plain = decode_rounds(target(), Drafters(), PROMPT, PARAMS[0], seed=7, num_tokens=20)
    assert ids_of(rounds, 20) == ids_of(plain, 20)
