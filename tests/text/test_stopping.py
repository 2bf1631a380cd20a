"""A stop string is found at one place, whatever pieces the text comes in, and nothing of it is shown."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.text.stopping import StopStrings

texts = st.text(alphabet="ab\n", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def expected_text(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first; of several complete at once, the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(text=texts, stops=stop_lists, data=st.data())
def test_any_splitting_gives_the_text_before_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher = StopStrings(stops)
    shown, start, is_stopped = "", 0, False
    while start < len(text) and not is_stopped:
        size = data.draw(st.integers(1, 7))
        piece, is_stopped = matcher.feed(text[start : start + size])
        shown += piece
        start += size
        assert expected_text(text, stops).startswith(shown)
    assert is_stopped == any(stop in text for stop in stops)
    assert shown + matcher.flush() == expected_text(text, stops)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["</end>", "\n\n"])
    assert matcher.feed("one\n") == ("one", False)
    assert matcher.feed("two <") == ("\ntwo ", False)
    assert matcher.feed("/en") == ("", False)
    assert matcher.feed("ding") == ("</ending", False)
    assert matcher.feed("\n\nrest") == ("", True)
    assert matcher.feed("more") == ("", True)
    assert matcher.flush() == ""
