"""SwiftSpec's schemes and published figures."""

from dataclasses import replace

import pytest

from forerun.core.errors import ConfigError
from forerun.engine.trace import AnswerTrace
from forerun.planner.roofline import SizedModel, known_models, machine_named, pace_of
from forerun.planner.simulate import Costs
from forerun.planner.synthetic import FREE, SyntheticPair, accepted_per_round, traces_for
from tests.planner.paces import costs, flat, known_answer
from tests.planner.paper_inputs import (
    PARALLEL,
    PARALLEL_DEPTH,
    SERIAL,
    SERIAL_DEPTH,
    WIDER_ACCEPTS,
    WIDER_TAKES,
    serial_overhead_s,
)
from tests.planner.schemes import Scheme, play_scheme

PAIR = SyntheticPair(num_answers=12)
PUBLISHED_RATIO = PARALLEL.tokens_per_s / SERIAL.tokens_per_s


def scheme_traces(accepted: float, scheme: Scheme, pair: SyntheticPair) -> list[AnswerTrace]:
    return traces_for(accepted, pair, lambda traces: play_scheme(traces, scheme, FREE).accepted_per_round)


def test_a_serial_round_is_its_expansions_and_a_pass() -> None:
    scheme = Scheme(kind="serial", depth=3)
    outcome = play_scheme([known_answer(40)], scheme, costs(10.0, 2.0, overhead_ms=1.0))
    assert (outcome.tokens_per_round, outcome.round_s) == (4.0, pytest.approx(17e-3))


@pytest.mark.parametrize(("draft_ms", "round_ms"), [(2.0, 11.0), (4.0, 13.0)])
def test_a_parallel_round_is_the_longer_side(draft_ms: float, round_ms: float) -> None:
    scheme = Scheme(kind="parallel", verify_width=3, depth=3)  # a cut of two levels: drafting keeps up
    outcome = play_scheme([known_answer(60)], scheme, costs(10.0, draft_ms, overhead_ms=1.0))
    assert (outcome.tokens_per_round, outcome.miss_rate) == (3.0, 0.0)
    assert outcome.round_s == pytest.approx(1e-3 * round_ms)


def test_a_parallel_miss_costs_expansions_until_a_cut_is_full() -> None:
    scheme = Scheme(kind="parallel", verify_width=3, depth=3)
    outcome = play_scheme([known_answer(30, is_right=False)], scheme, costs(10.0, 2.0))
    assert outcome.miss_rate == pytest.approx(29 / 30)  # the last one's is not known
    assert outcome.round_s == pytest.approx(12e-3)  # one: two children and the root fill a cut of three


def test_the_synthetic_pair_gives_the_known_figures() -> None:
    traces = SyntheticPair(num_answers=24).traces()
    times = replace(costs(10.39, 1.9), parallel_overhead_s=1e-3)
    serial = play_scheme(traces, Scheme(kind="serial"), times)
    parallel = play_scheme(traces, Scheme(kind="parallel"), times)
    assert serial.tokens_per_round == pytest.approx(3.76, rel=0.03)
    assert parallel.tokens_per_round == pytest.approx(3.16, rel=0.03)
    assert parallel.miss_rate == pytest.approx(0.22, abs=0.03)
    assert parallel.tokens_per_s == pytest.approx(268, rel=0.03)


@pytest.mark.parametrize("accepted", [1.5, 3.3])
def test_a_stated_acceptance_is_met(accepted: float) -> None:
    assert accepted_per_round(traces_for(accepted, PAIR)) == pytest.approx(accepted, rel=0.02)


def test_the_reference_tree_is_the_serial_scheme() -> None:
    traces = PAIR.traces()
    assert accepted_per_round(traces) == play_scheme(traces, Scheme(kind="serial"), FREE).accepted_per_round


@pytest.mark.parametrize("accepted", [0.0, 7.0])
def test_an_acceptance_that_no_pair_can_have_is_refused(accepted: float) -> None:
    with pytest.raises(ConfigError, match="without the bonus token"):
        traces_for(accepted, PAIR)


def test_the_published_ratio_follows_from_the_published_times_and_lengths() -> None:
    """First reading of table 7. Only the serial row is used to fit: what a serial round takes beside its passes."""
    serial = Costs(target=SERIAL.target, draft=SERIAL.draft, serial_overhead_s=serial_overhead_s())
    round_s = SERIAL_DEPTH * serial.expansion_s(8) + serial.target.step_s(8) + serial.serial_overhead_s
    scheme = Scheme(kind="parallel", depth=PARALLEL_DEPTH)
    parallel = play_scheme(
        scheme_traces(PARALLEL.accept_length, scheme, PAIR), scheme, Costs(target=PARALLEL.target, draft=PARALLEL.draft)
    )
    ratio = parallel.tokens_per_s / ((1.0 + SERIAL.accept_length) / round_s)
    assert ratio == pytest.approx(PUBLISHED_RATIO, rel=0.10)


def test_the_published_speeds_follow_from_the_serial_length_alone() -> None:
    """Second reading: lengths count the bonus token, a draft time is that of two expansions. No speed is fitted."""
    scheme = Scheme(kind="serial", depth=4)
    traces = scheme_traces(SERIAL.accept_length - 1.0, scheme, SyntheticPair(num_answers=24))
    serial = play_scheme(traces, scheme, Costs(target=SERIAL.target, draft=flat(3.73 / 2)))
    parallel = play_scheme(
        traces, Scheme(kind="parallel", depth=PARALLEL_DEPTH), Costs(target=PARALLEL.target, draft=flat(3.25 / 2))
    )
    assert serial.tokens_per_s == pytest.approx(SERIAL.tokens_per_s, rel=0.05)
    assert parallel.tokens_per_s / serial.tokens_per_s == pytest.approx(PUBLISHED_RATIO, rel=0.10)


def test_sixteen_rows_lose_on_the_published_machine_as_published() -> None:
    traces = SyntheticPair(num_answers=24).traces()
    accepted = [
        play_scheme(traces, Scheme(kind="serial", verify_width=width), FREE).accepted_per_round for width in (8, 16)
    ]
    model = SizedModel(name="Llama-3-70B", spec=known_models()["Llama-3-70B"])
    pace = pace_of(machine_named("8xH800"), model, 4, 512)
    net = accepted[1] / accepted[0] * pace.step_s(8) / pace.step_s(16)
    assert net == pytest.approx(WIDER_ACCEPTS / WIDER_TAKES, rel=0.10)
    assert net < 1.0
