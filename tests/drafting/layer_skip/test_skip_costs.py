"""What a pass without some sublayers costs, against sums by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.pace import Pace
from forerun.core.sublayers import all_sublayers
from forerun.drafting.layer_skip.speed_model import SkipCosts

WHOLE = Pace(steps=((1, 1.0), (2, 1.25), (8, 2.0)))
COSTS = SkipCosts(
    whole=WHOLE, attention_s=0.04, mlp_s=0.05, context=100, attention_slope_s=0.0001, num_layers=10
)  # fmt: skip
NUMBERS = st.integers(0, 10)
CONTEXTS = st.integers(0, 100_000)


def test_attention_takes_longer_with_more_text_before_it() -> None:
    assert COSTS.attention_at(100) == pytest.approx(0.04)
    assert COSTS.attention_at(600) == pytest.approx(0.09)
    assert COSTS.attention_at(0) == pytest.approx(0.03)
    steep = replace(COSTS, attention_slope_s=0.001)
    assert steep.attention_at(0) == 0.0, "no less than nothing"


def test_what_is_skipped_is_taken_off() -> None:
    assert COSTS.draft_s(3, 0, 100) == pytest.approx(1.0 - 3 * 0.04)
    assert COSTS.draft_s(0, 4, 100) == pytest.approx(1.0 - 4 * 0.05)
    assert COSTS.draft_s(3, 4, 600) == pytest.approx(1.5 - 3 * 0.09 - 4 * 0.05)
    assert COSTS.draft_s(10, 0, 10_000) == pytest.approx(COSTS.draft_s(10, 0, 100)), "no attention, no slope"


@given(num_attention=NUMBERS, num_mlp=NUMBERS, context=CONTEXTS, part_s=st.floats(0.0, 1.0))
def test_no_pass_is_ever_said_to_take_less_than_a_hundredth_of_a_whole_one(
    num_attention: int, num_mlp: int, context: int, part_s: float
) -> None:
    """Even where sublayers were measured to take more than there is."""
    costs = replace(COSTS, attention_s=part_s, mlp_s=part_s)
    seconds = costs.draft_s(num_attention, num_mlp, context)
    assert costs.whole_at(context) / 100 <= seconds <= costs.whole_at(context)
    assert seconds > 0.0


@given(skipped=st.frozensets(st.sampled_from(all_sublayers(10))), context=CONTEXTS)
def test_more_rows_cost_as_much_more_as_in_a_whole_pass(skipped: frozenset[tuple[int, str]], context: int) -> None:
    pace = COSTS.draft(skipped, context)
    assert [rows for rows, _ in pace.steps] == [1, 2, 8]
    assert [seconds / pace.step_s(1) for _, seconds in pace.steps] == pytest.approx([1.0, 1.25, 2.0])
    assert sorted(seconds for _, seconds in pace.steps) == [seconds for _, seconds in pace.steps]
