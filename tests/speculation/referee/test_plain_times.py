"""When plain rounds are timed, and what is told of them."""

import random

import pytest

from forerun.speculation.referee.plain_times import (
    COUNTED,
    FEWEST,
    FEWEST_TOKENS,
    SHARE,
    WARM_UP_S,
    PlainTimes,
    Stretch,
    speedup_of,
)


def test_stretches_take_their_share_of_the_time() -> None:
    times = PlainTimes()
    now = 0.0
    plain_s = 0.01
    drafted_s = 0.012
    spent_s = 0.0
    num_stretches = 0
    while now < 100.0:
        if times.is_due:
            num_stretches += 1
            stretch = Stretch(times)
            began = now
            while stretch.num_counted < COUNTED:
                now += plain_s
                stretch.told(now, plain_s, 0)
            times.spend(now - began)
            spent_s += now - began
        else:
            now += drafted_s
            times.pass_by(drafted_s)
    assert spent_s / now == pytest.approx(SHARE, rel=0.1)
    assert num_stretches > 50


def test_the_rounds_at_the_start_of_a_stretch_do_not_count() -> None:
    for round_s, num_before in ((WARM_UP_S / 8, 8), (10 * WARM_UP_S, 1)):
        times = PlainTimes()
        stretch = Stretch(times)
        for number in range(20):
            stretch.told(float(number), round_s, 0)
        assert len(times.since(-1.0, 0)) == stretch.num_counted == 20 - num_before


def test_only_rounds_since_the_request_began_count() -> None:
    times = PlainTimes()
    for second in range(10):
        times.told(float(second), second + 1.0, 0)
    assert times.since(7.5, 0) == [10.0, 9.0]


def test_rounds_with_more_context_stand_for_those_with_less() -> None:
    times = PlainTimes(context_s=1e-6)
    times.told(1.0, 0.010 + 300e-6, 300)
    assert times.since(0.0, 100) == pytest.approx([0.010 + 100e-6])


def test_the_speed_up_is_the_time_of_plain_decoding_over_the_time_it_took() -> None:
    found = speedup_of(100, 50, 0.8, [0.010] * 20)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25))
    assert (found.plain_token_s, found.num_plain_rounds) == (pytest.approx(0.010), 20)


def test_its_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(4)
    num_covered = 0
    num_told = 0
    for _ in range(1000):
        plain = [max(0.5, rng.gauss(1.0, 0.1)) for _ in range(16)]
        found = speedup_of(100, 50, 80.0, plain)
        if found is not None:
            num_told += 1
            num_covered += found.low <= 1.25 <= found.high
    assert num_told > 950
    assert num_covered / num_told == pytest.approx(0.93, abs=0.03)


@pytest.mark.parametrize(
    ("num_tokens", "plain"),
    [
        pytest.param(FEWEST_TOKENS - 1, [0.01] * 20, id="few tokens"),
        pytest.param(100, [0.01] * (FEWEST - 1), id="few plain rounds"),
        pytest.param(100, [0.01, 0.02] * 4, id="much scatter"),
    ],
)
def test_nothing_is_told_where_too_little_was_measured(num_tokens: int, plain: list[float]) -> None:
    assert speedup_of(num_tokens, num_tokens, 0.01 * num_tokens, plain) is None
