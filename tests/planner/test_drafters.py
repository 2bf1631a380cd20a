"""Tokens per round of the drafters in a trace."""

from dataclasses import replace

import pytest

from forerun_lab.planner.drafters import rounds_in_sequence, tokens_per_round
from tests.planner.paces import known_answer


@pytest.mark.parametrize(
    ("accepted", "num_rounds"),
    [((0, 0, 0), 3), ((2, 9, 9, 0), 2), ((1, 5, 0, 1, 5), 3), ((4, 0, 0, 0), 1), ((), 0)],
)
def test_a_round_begins_where_the_one_before_it_ends(accepted: tuple[int, ...], num_rounds: int) -> None:
    assert rounds_in_sequence(accepted) == num_rounds


def test_only_what_was_recorded_is_reported() -> None:
    right = known_answer(40)
    wrong = known_answer(40, is_right=False)
    nothing = replace(right, children=((),) * 40, log_probs=((),) * 40)
    assert tokens_per_round([nothing]) == {}
    skipping = replace(wrong, skip_children=right.children, skip_log_probs=right.log_probs)
    found = tokens_per_round([
        replace(skipping, accepted={"recycling": (1, 0) * 20}),
        replace(wrong, accepted={"recycling": (0,) * 40, "prompt_lookup": (3, 2, 1, 0) * 10}),
    ])  # fmt: skip
    assert list(found) == ["draft_model", "layer_skip", "recycling", "prompt_lookup"]
    assert found["draft_model"] == (16, 1.0)
    assert found["recycling"] == (16, pytest.approx(80 / 60))
    assert found["prompt_lookup"] == (16, 4.0)
    assert found["layer_skip"][1] > 5.0
