"""Conversations of a .jsonl file: what is read of them, and what is said about those that are none."""

import json
from pathlib import Path

import pytest

from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.text.tokenizer import Tokenizer
from forerun_lab.distill.reader import read_given

ASKED = {"role": "user", "content": "Hi"}
HALF = "\ud800"  # of a character


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    template = "{% for message in messages %}{{ message.role + ': ' + message.content }}\n{% endfor %}"
    return open_source(BUILTIN_TARGET).tokenizer().with_chat_template(template)


def line_of(*messages: object) -> str:
    return json.dumps({"messages": messages}, ensure_ascii=False)


@pytest.mark.parametrize("answer", ["a\u2028b\x85c\x0cd", [{"type": "text", "text": "a"}], ""])
def test_an_answer_may_hold_any_text(answer: object, tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "said.jsonl"
    line = line_of(ASKED, {"role": "assistant", "content": answer})
    path.write_text(f"\ufeff{line}\r\n\n{line}\n", encoding="utf-8")
    text = answer if isinstance(answer, str) else "a"
    opening = tokenizer.apply_chat_template([ASKED])
    ids = [*opening, *tokenizer.encode(text, add_special_tokens=False), 2]
    assert read_given(path, tokenizer, [2], 1024) == [(ids, len(opening))] * 2


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        line_of(ASKED, {"role": "assistant", "content": None}),
        line_of(ASKED, {"role": "assistant", "content": 5}),
        line_of("Hi", {"role": "assistant", "content": "a"}),
        line_of({"role": ["user"], "content": "Hi"}, {"role": "assistant", "content": "a"}),
        json.dumps({"messages": [ASKED, {"role": "assistant", "content": HALF}]}),
    ],
)
def test_a_line_that_is_no_conversation_is_named(line: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "said.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"said\.jsonl, line 2"):
        read_given(path, tokenizer, [2], 1024)
