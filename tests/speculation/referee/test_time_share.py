"""A share of the time is kept to, however it is spent."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.speculation.referee.time_share import TimeShare

SECONDS = st.floats(0.0, 10.0)
EVENTS = st.lists(st.tuples(st.sampled_from(["pass", "hurry", "spend"]), SECONDS), max_size=60)


@given(share=st.floats(1e-3, 1.0), most_saved_s=st.floats(0.0, 5.0), events=EVENTS)
def test_in_no_stretch_of_time_is_more_spent_than_share_savings_and_hurry_allow(
    share: float, most_saved_s: float, events: list[tuple[str, float]]
) -> None:
    """Beyond one spending, which is not known before it is over."""
    time = TimeShare(share, most_saved_s)
    paid = [0.0]
    spent = [0.0]
    largest_s = 0.0
    hurried_s = 0.0
    for kind, seconds in events:
        paid_s = spent_s = 0.0
        match kind:
            case "pass":
                time.pass_by(seconds)
                paid_s = share * seconds
            case "hurry":
                time.hurry(seconds)
                hurried_s += seconds
            case "spend" if time.is_open:
                time.spend(seconds)
                spent_s = seconds
                largest_s = max(largest_s, seconds)
        paid.append(paid[-1] + paid_s)
        spent.append(spent[-1] + spent_s)
    for start in range(len(events) + 1):
        for end in range(start, len(events) + 1):
            allowed_s = paid[end] - paid[start] + most_saved_s + hurried_s + largest_s
            assert spent[end] - spent[start] <= allowed_s + 1e-9


def test_hurry_opens_it_at_once_and_is_not_cut_to_what_may_be_saved() -> None:
    time = TimeShare(0.01, most_saved_s=0.125)
    time.hurry(5.0)
    time.pass_by(100.0)
    for _ in range(39):
        time.spend(0.125)
        assert time.is_open
    time.spend(0.125)
    assert not time.is_open


def test_it_is_eager_while_there_is_more_than_can_be_saved_up_or_nearly_all_time_is_its_own() -> None:
    time = TimeShare(0.01, 1.0)
    time.hurry(5.0)
    assert time.is_eager
    time.spend(4.5)
    assert not time.is_eager
    assert TimeShare(1.0, 1.0).is_eager
