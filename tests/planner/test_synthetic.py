"""Made-up pairs of models of a stated acceptance."""

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.planner.synthetic import SyntheticPair, accepted_per_round, traces_for

PAIR = SyntheticPair(num_answers=12)


@pytest.mark.parametrize("accepted", [1.5, 3.3])
def test_a_stated_acceptance_is_met(accepted: float) -> None:
    assert accepted_per_round(traces_for(accepted, PAIR)) == pytest.approx(accepted, rel=0.02)


@pytest.mark.parametrize("accepted", [0.0, 7.0])
def test_an_acceptance_that_no_pair_can_have_is_refused(accepted: float) -> None:
    with pytest.raises(ConfigError, match="without the bonus token"):
        traces_for(accepted, PAIR)


def test_no_id_occurs_at_two_places_so_that_nothing_can_be_foreseen() -> None:
    traces = PAIR.traces()
    known = {1}  # the prompts' token
    for trace in traces:
        for children, token_id in zip(trace.children, trace.token_ids, strict=True):
            place = {*children, token_id}
            assert len(set(children)) == len(children)
            assert not place & known
            known |= place
    assert len(traces) > 1
