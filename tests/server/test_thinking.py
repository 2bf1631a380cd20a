"""Thought and answer are told apart at the same place, however the text was cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.protocols.thinking import ThinkingSplit

TEXTS = [
    ("", "<think>a b</think>\n\nthe answer", ("a b", "the answer")),
    ("", "\n<think>\nwell\n</think>\nyes", ("well", "yes")),
    ("", "no thought <think>at all</think>", ("", "no thought <think>at all</think>")),
    ("user<think>\n", "so\n\n</think>\n\nhence", ("so", "hence")),
    ("", "<think>cut off", ("cut off", "")),
    ("", "<think></think>x </think> y", ("", "x </think> y")),
    ("", "<thin ice", ("", "<thin ice")),
    ("", "<", ("", "<")),
    ("", "<think>a </thin b</think>c", ("a </thin b", "c")),
]


def split(prompt: str, pieces: list[str]) -> tuple[str, str]:
    parts = ThinkingSplit(prompt)
    found = [parts.feed(piece) for piece in pieces] + [parts.flush()]
    return "".join(thought for thought, _ in found), "".join(answer for _, answer in found)


@pytest.mark.parametrize(("prompt", "text", "expected"), TEXTS)
def test_one_piece_and_single_characters_give_the_same(prompt: str, text: str, expected: tuple[str, str]) -> None:
    assert split(prompt, [text]) == expected
    assert split(prompt, list(text)) == expected


@given(
    st.sampled_from(["", "<think>\n"]),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b</"]), max_size=12),
    st.data(),
)
def test_the_cut_does_not_matter(prompt: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    cut = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(prompt, cut) == split(prompt, list(text))
