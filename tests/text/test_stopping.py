"""A stop string is found at one place, whatever pieces the text comes in, and nothing of it is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.text.detokenizer import StopStrings
from forerun.text.output.thoughts import ThoughtDivider, ThoughtMarks, thought_marks
from forerun.text.output.traits import CallFormat, TemplateTraits

texts = st.text(alphabet="ab\n", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def expected_text(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first; of several complete at once, the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(text=texts, stops=stop_lists, data=st.data())
def test_any_splitting_gives_the_text_before_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher = StopStrings(stops)
    shown = ""
    start = 0
    is_stopped = False
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


THINKS = TemplateTraits(thought=("<think>", "</think>"))
HARMONY = TemplateTraits(calls=CallFormat(kind="harmony"))
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("traits", "prompt", "text", "parts"),
    [
        (THINKS, "", "<think>a\n</think>\n\nb</think>", [("<think>a\n</think>\n\n", False), ("b</think>", True)]),
        (THINKS, "", "\n <think>a</think>b", [("\n <think>a</think>", False), ("b", True)]),
        (THINKS, "<think>\n", "a</th", [("a</th", False)]),
        (THINKS, "<think>\n", "a</think>\n", [("a</think>\n", False)]),
        (THINKS, "<think>a</think>", " b<think>", [(" b<think>", True)]),
        (THINKS, "", "<thin", [("<thin", True)]),
        (HARMONY, "", f"{ANALYSIS}a<|end|>{FINAL}b", [(f"{ANALYSIS}a<|end|>{FINAL}", False), ("b", True)]),
        (HARMONY, "", "a<|end|>", [("a", True), ("<|end|>", False)]),
        (
            HARMONY, "", "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
            [("<|channel|>commentary to=functions.f<|message|>", False), ("{}", True), ("<|call|>", False)],
        ),
    ],
)  # fmt: skip
def test_thoughts_and_headers_are_no_part_of_the_answer(
    traits: TemplateTraits, prompt: str, text: str, parts: list[tuple[str, bool]]
) -> None:
    marks = thought_marks(traits, prompt)
    assert marks is not None
    for pieces in ([text], list(text), *([text[:place], text[place:]] for place in range(len(text)))):
        assert divided(marks, pieces) == parts


def divided(marks: ThoughtMarks, pieces: list[str]) -> list[tuple[str, bool]]:
    """The parts of a text, neighbours of one kind joined."""
    divider = ThoughtDivider(marks)
    joined: list[tuple[str, bool]] = []
    for text, is_answer in [part for piece in pieces for part in divider.feed(piece)] + divider.finish():
        if joined and joined[-1][1] == is_answer:
            joined[-1] = (joined[-1][0] + text, is_answer)
        elif text:
            joined.append((text, is_answer))
    return joined


def test_a_model_without_marks_of_thoughts_has_none() -> None:
    assert thought_marks(TemplateTraits(), "") is None
