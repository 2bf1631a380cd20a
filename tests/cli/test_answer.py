"""Characters are marked by the token that wrote them, however late they are shown."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.cli.answer import TokenOrigins, describe_stats, tree_shower
from forerun.core.steps import DecodeStep, FinishReason, Generation, GenerationStats, StepStats
from forerun.engine.tokenizer import Tokenizer
from tests.engine.tiny_tokenizers import write_byte_level


def step(token_ids: list[int], text: str, *, num_accepted: int) -> DecodeStep:
    stats = StepStats(
        num_drafted=4, num_verified=5, num_accepted=num_accepted, num_near_ties=0, draft_s=0, verify_s=0, was_hit=False
    )
    return DecodeStep(token_ids=tuple(token_ids), text=text, finish=None, stats=stats)


def test_text_that_lags_behind_its_tokens_keeps_their_origin(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_byte_level(tmp_path))
    a, b, c = (tokenizer.vocabulary()[token] for token in "ABC")
    euro = tokenizer.encode("€")
    assert len(euro) == 3, "the test needs a character of several tokens"
    origins = TokenOrigins(tokenizer)
    assert origins.of(step([a, b, c], "AB", num_accepted=2)) == [("AB", True)]
    assert origins.of(step([a, *euro[:2]], "CA", num_accepted=1)) == [("C", False), ("A", True)]
    assert origins.of(step([euro[2], a], "€", num_accepted=1)) == [("€", True)]
    assert origins.of(step([], "A!", num_accepted=0)) == [("A!", False)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "mark"), [("", "\x1b[32;4m"), ("1", "\x1b[4m")])
def test_a_terminal_shows_drafted_text_underlined_and_in_colour_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: str, mark: str
) -> None:
    tokenizer = Tokenizer.load(write_byte_level(tmp_path))
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    show = tree_shower(tokenizer)
    show(step(tokenizer.encode("AB"), "AB", num_accepted=1))
    assert sys.stdout.getvalue() == f"{mark}A\x1b[0mB"  # type: ignore[attr-defined]


def test_the_speed_up_is_the_speed_over_that_of_plain_decoding() -> None:
    names = GenerationStats.__dataclass_fields__
    stats = GenerationStats(**dict.fromkeys(names, 0) | {"tokens_per_s": 300.0, "hit_rate": 0.5})
    result = Generation(text="", token_ids=(), finish_reason=FinishReason.STOP, seed=7, stats=stats)
    line = describe_stats(result, plain_step_s=0.01)
    assert "3.00x plain decoding (10.00 ms a token)" in line
    assert "hit rate 50%" in line
    assert "plain" not in describe_stats(result, plain_step_s=None)


def test_a_drafter_that_was_away_or_late_is_told_of() -> None:
    names = GenerationStats.__dataclass_fields__
    stats = GenerationStats(**dict.fromkeys(names, 0) | {"num_rounds": 80, "num_rounds_down": 12})
    result = Generation(text="", token_ids=(), finish_reason=FinishReason.STOP, seed=7, stats=stats)
    line = describe_stats(result, plain_step_s=None)
    assert line.endswith(" · drafter away in 12 of 80 rounds")
    late = replace(result, stats=replace(stats, num_rounds_down=0, num_rounds_late=3))
    assert describe_stats(late, plain_step_s=None).endswith(" · drafter late in 3 of 80 rounds")
