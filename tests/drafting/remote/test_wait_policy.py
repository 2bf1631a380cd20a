"""How long a drafter is waited for, on told times, and what that makes of a slow, a stopped and a silent one."""

import random

import pytest

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.steps import DrafterState
from forerun.drafting.policies import RemotePolicy
from forerun.drafting.remote.connection import SILENCE_S, Liveness
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Setup
from forerun.drafting.remote.waiting import FLOOR_S, RESPONSE_FACTOR, STEP_FACTOR, WaitPolicy
from forerun.speculation.walk import walk
from tests.drafting.remote.fake import FakeGrower, Language
from tests.drafting.remote.fake_wires import Pace, Spend, World
from tests.tiny import own_outcome, proposal_of

MANY = 60  # measurements, after which a running mean has forgotten what was before


def policy_after(*, step_s: float, response_s: float, gain: int = 2) -> WaitPolicy:
    """What is known of a drafter that has always been like this."""
    told = WaitPolicy()
    for _ in range(MANY):
        told.measure_step(step_s)
        told.measure_response(response_s)
        told.measure_gain(gain)
    return told


def test_a_drafter_is_given_a_few_times_what_it_usually_takes_but_only_so_many_steps() -> None:
    assert policy_after(step_s=1.0, response_s=0.1).wait_s(0.0, 1.0) == pytest.approx(RESPONSE_FACTOR * 0.1)
    assert policy_after(step_s=1.0, response_s=0.9).wait_s(0.0, 1.0) == pytest.approx(STEP_FACTOR)
    assert policy_after(step_s=0.002, response_s=0.0001).wait_s(0.0, 1.0) == FLOOR_S


def test_a_missed_deadline_ends_the_waiting_until_a_proposal_comes_in_time() -> None:
    told = policy_after(step_s=0.1, response_s=0.01)
    told.is_late = True
    assert told.wait_s(0.0, 1.0) == 0.0
    told.is_late = False
    assert told.wait_s(0.0, 1.0) > 0.0


def test_waiting_ends_where_it_does_not_pay() -> None:
    rng = random.Random(2)
    num_waits = 0
    for _ in range(500):
        step_s = rng.random()
        response_s = rng.random()
        gain = rng.randint(0, 5)
        value = 3 * rng.random()
        reach = rng.random()
        with_wait = (1 + value + gain * reach) / (step_s + response_s)
        without = (1 + value) / step_s
        if abs(with_wait - without) < 1e-3 * without:
            continue  # rounding may decide
        is_waited_for = policy_after(step_s=step_s, response_s=response_s, gain=gain).wait_s(value, reach) > 0
        assert is_waited_for == (with_wait > without)
        num_waits += is_waited_for
    assert 100 < num_waits < 400


def test_a_drafter_that_says_nothing_for_long_hangs() -> None:
    told = Liveness()
    assert not told.is_hung(0.99 * SILENCE_S)
    assert told.is_hung(1.01 * SILENCE_S)


class Round:
    """A request at work, round by round, with a drafter that is always right."""

    STEP_S = 0.01

    def __init__(self, *, answers_in_s: float) -> None:
        self.language = Language(5, vocab_size=9, skill=1.0, num_guesses=2)
        pace = Pace(expansion_s=answers_in_s, latency_s=0.0, revival_s=0.01, fault_rate=0.0)
        self.world = World(random.Random(5), pace, vocab_size=9, make_grower=self.make_grower)
        draft = DraftModel(verify_width=4, draft_width=2)
        policy = RemotePolicy(looks_up=False)
        self.drafter = ParallelDrafter(
            self.world, draft, policy, target_vocab_size=9, check=lambda _: None, clock=self.world.clock
        )
        assert self.drafter.wait_until_ready(1.0)
        self.text = [1]
        self.drafter.begin(self.text, SamplingParams(), None)

    def make_grower(self, setup: Setup, spend: Spend) -> FakeGrower:
        pass_s = self.world.pace.expansion_s
        return FakeGrower(self.language, horizon=24, draft_width=setup.draft_width, expansion_s=pass_s, spend=spend)

    def play(self) -> tuple[float, DrafterState, int]:
        """One round: the wait, the state, and the accepted tokens."""
        tree = proposal_of(self.drafter)
        acceptance = walk(tree, self.language.choices(self.text, tree))
        self.world.run(self.STEP_S)
        report = self.drafter.told(own_outcome(acceptance))
        self.text += acceptance.tokens
        return report.wait_s, report.state, len(acceptance.path)

    def stop_drafter(self, seconds: float) -> None:
        assert self.world.worker is not None
        self.world.worker.at = self.world.clock.now + seconds


def test_a_stopped_drafter_costs_one_wait_and_is_used_again_when_it_goes_on() -> None:
    request = Round(answers_in_s=0.001)
    assert sum(request.play()[2] for _ in range(10)) >= 10
    request.stop_drafter(1.0)
    stopped = [request.play() for _ in range(50)]
    waits = [wait_s for wait_s, _, _ in stopped if wait_s > 0]
    assert len(waits) <= 1
    assert sum(waits) <= max(FLOOR_S, STEP_FACTOR * request.STEP_S) + 1e-9
    assert stopped[-1][1:] == (DrafterState.LATE, 0)
    again = [request.play() for _ in range(80)]
    assert again[-1][1] is DrafterState.READY
    assert sum(num_accepted for _, _, num_accepted in again[-20:]) >= 20


def test_a_drafter_that_hangs_is_replaced_and_the_new_one_used() -> None:
    request = Round(answers_in_s=0.001)
    for _ in range(10):
        request.play()
    request.stop_drafter(1e9)
    rounds = [request.play() for _ in range(int(1.5 * SILENCE_S / request.STEP_S))]
    assert request.world.counts["replaced"] == 1
    assert sum(num_accepted for _, _, num_accepted in rounds[-20:]) >= 20


def test_a_drafter_that_never_heard_of_a_request_is_told_again() -> None:
    request = Round(answers_in_s=0.001)
    request.play()
    worker = request.world.worker
    assert worker is not None
    worker.inbox.rate = 1.0
    worker.inbox.fates = ("drop",)
    request.text = [2, 3]
    request.drafter.begin(request.text, SamplingParams(), None)
    request.play()
    worker.inbox.rate = 0.0
    rounds = [request.play() for _ in range(200)]
    assert sum(num_accepted for _, _, num_accepted in rounds[-20:]) >= 20
