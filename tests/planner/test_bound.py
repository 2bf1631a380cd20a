"""The bound of a parallel drafter: worked out by hand where that can be done, and above every projection."""

from contextlib import closing
from dataclasses import replace

import pytest

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DraftModel, Parallel
from forerun.drafting.policies import Policies, TreePolicy
from forerun_lab.bench.run.draft_traces import Recorder
from forerun_lab.planner.bound import bound_of
from forerun_lab.planner.outcome import AnswerOutcome
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.synthetic import SyntheticPair
from forerun_lab.planner.trace import AnswerTrace
from tests.planner.paces import costs, known_answer
from tests.varied import NO_LOOKUP

DRAFTER = Parallel(draft=DraftModel(verify_width=8, draft_width=8, adaptive=False))
POLICIES = Policies(tree=TreePolicy(num_children=2, min_mass=0.0, looks_up=False), remote=NO_LOOKUP.remote)
RESTING = replace(POLICIES, remote=replace(POLICIES.remote, max_lateness=0.1))
ONE_REPAIR = replace(RESTING, remote=replace(RESTING.remote, max_repairs=1))
DRAFT_MS = (1.9, 3.25, 3.8, 6.2)  # beside a target's pass of 10


def free(target_ms: float, draft_ms: float) -> Costs:
    return replace(costs(target_ms, draft_ms), wire_s=0.0)


def bound_answer(trace: AnswerTrace, draft_ms: float) -> AnswerOutcome:
    (answer,) = bound_of([trace], DRAFTER, free(10.0, draft_ms), POLICIES).outcome.answers
    return answer


def gained(outcomes: list[AnswerOutcome]) -> tuple[int, int, float]:
    """What a longer answer takes more than a shorter one: tokens, rounds, seconds. Beginning and end cancel out."""
    long, short = outcomes
    assert long.num_misses == 0
    return long.num_tokens - short.num_tokens, long.num_rounds - short.num_rounds, long.decode_s - short.decode_s


@pytest.mark.parametrize(
    ("draft_ms", "num_tokens", "round_ms"),
    [
        pytest.param(1.0, 8, 10.0, marks=pytest.mark.slow),  # ten levels grow in a pass, eight rows give eight tokens
        (1.9, 6, 11.4),  # 10 / 1.9 = 5.3: the sixth level is there 1.4 ms after the verdict, and is waited for
        pytest.param(4.4, 3, 13.2, marks=pytest.mark.slow),
    ],
)
def test_at_the_bound_a_draft_that_is_always_right_is_eaten_as_fast_as_it_grows(
    draft_ms: float, num_tokens: int, round_ms: float
) -> None:
    """A draft pass adds one level, and a level is one token: 1 / D tokens/s, if there are rows for them."""
    tokens, rounds, decode_s = gained([bound_answer(known_answer(length), draft_ms) for length in (241, 121)])
    assert (tokens, rounds) == (120, 120 / num_tokens)
    assert decode_s == pytest.approx(1e-3 * round_ms * rounds)


def test_a_miss_costs_one_draft_pass_at_the_bound() -> None:
    """The target waits for it after the verdict; the worker had come to rest before."""
    right = known_answer(121)
    wrong = ((9998, 9999), *right.children[61:])
    missed = replace(right, children=(*right.children[:60], *wrong))
    for wire_ms, waited_ms in ((0.0, 3.0), (0.25, 3.5)):
        times = replace(costs(10.0, 3.0), wire_s=1e-3 * wire_ms)
        plain, with_miss = (
            simulate([trace], DRAFTER, times, ONE_REPAIR).answers[0] for trace in (right, missed)
        )  # fmt: skip
        assert (plain.num_misses, with_miss.num_misses) == (0, 1)
        assert with_miss.miss_wait_s - plain.miss_wait_s == pytest.approx(1e-3 * waited_ms)


def test_a_rounds_time_is_the_pass_the_waits_and_the_stated_overhead() -> None:
    traces = SyntheticPair(num_answers=3, num_tokens=60).traces()
    outcome = simulate(traces, DRAFTER, costs(10.0, 3.0, overhead_ms=0.5))
    assert outcome.per_round("pass_s") == pytest.approx(10e-3)
    assert outcome.overhead_s == pytest.approx(0.5e-3)
    assert outcome.per_round("miss_wait_s") > 0.1e-3
    assert outcome.wasted_rows_per_round == pytest.approx(outcome.per_round("num_rows") - outcome.tokens_per_round)
    assert 0.0 < outcome.useless_expansions < 1.0
    assert 0 < outcome.per_round("num_late") < 1


@pytest.mark.slow
def test_the_bound_is_above_every_projection_of_synthetic_pairs() -> None:
    """But for 2 %, which is what a bound of so few tokens is uncertain by."""
    for exponent in (0.1, 1.0):
        traces = SyntheticPair(num_answers=2, num_tokens=64, exponent=exponent).traces()
        for draft_ms in DRAFT_MS:
            most = bound_of(traces, DRAFTER, free(10.0, draft_ms)).outcome.tokens_per_s
            for overhead_ms in (0.0, 0.5):
                times = costs(10.0, draft_ms, overhead_ms=overhead_ms)
                assert simulate(traces, DRAFTER, times).tokens_per_s < 1.02 * most


def test_the_bound_is_above_the_projection_of_recorded_answers_and_says_what_is_between() -> None:
    prompts = ["def add(left, right):", "class Point:"]
    with closing(Recorder(EngineConfig(num_threads=1), "builtin-draft")) as recorder:
        params = SamplingParams(max_new_tokens=72, temperature=1.0, seed=1, ignore_eos=True)
        traces = list(recorder.record(prompts, params))
    times = replace(costs(10.4, 3.25, overhead_ms=1.0), worker_expansion_overhead_s=0.2e-3)
    bound = bound_of(traces, DRAFTER, times)
    projected = simulate(traces, DRAFTER, times)
    assert projected.tokens_per_s < 0.98 * bound.outcome.tokens_per_s
    assert bound.outcome.tokens_per_s - sum(bound.lost_to.values()) == pytest.approx(projected.tokens_per_s)
