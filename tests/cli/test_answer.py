"""Characters are marked by the token that wrote them, however late they are shown."""

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun import Engine, EngineConfig, GenerationStream, NoDrafter, SamplingParams
from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.cli import answer
from forerun.cli.answer import origin_shower, show_plainly, write_answer
from forerun.core.steps import DecodeStep, PrefillStep, StepStats
from tests.text.tiny_tokenizers import write_byte_level


def step(token_ids: list[int], text: str, *, num_accepted: int) -> DecodeStep:
    stats = StepStats(
        num_drafted=4, num_verified=5, num_accepted=num_accepted, num_near_ties=0, draft_s=0, verify_s=0, was_hit=False
    )
    return DecodeStep(token_ids=tuple(token_ids), text=text, finish=None, stats=stats)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "mark"), [("", "\x1b[32;4m"), ("1", "\x1b[4m")])
def test_a_terminal_shows_drafted_text_underlined_and_in_colour_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: str, mark: str
) -> None:
    tokenizer = read_tokenizer(write_byte_level(tmp_path))
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    show = origin_shower(tokenizer)
    show(step(tokenizer.encode("AB"), "AB", num_accepted=1))
    assert sys.stdout.getvalue() == f"{mark}A\x1b[0mB"  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as engine:
        yield engine


class Pressed:
    """A stream at whose first step, of the prompt or of the text, Ctrl-C is pressed."""

    def __init__(self, stream: GenerationStream, *, while_reading: bool) -> None:
        self._stream = stream
        self._while_reading = while_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def prefill(self) -> Iterator[PrefillStep]:
        for part in self._stream.prefill():
            if self._while_reading:
                signal.raise_signal(signal.SIGINT)
            yield part

    def __iter__(self) -> Iterator[DecodeStep]:
        for step in self._stream:
            signal.raise_signal(signal.SIGINT)
            yield step


@pytest.mark.parametrize("while_reading", [False, True])
def test_ctrl_c_ends_an_answer_with_what_was_shown(
    engine: Engine, capsys: pytest.CaptureFixture[str], while_reading: bool
) -> None:
    expected = engine.generate("the cat", SamplingParams(max_new_tokens=9, ignore_eos=True))
    engine.forget()

    def start() -> Any:
        return Pressed(engine.stream("the cat", SamplingParams(ignore_eos=True)), while_reading=while_reading)

    result, is_interrupted = write_answer(start, show_plainly)
    assert is_interrupted
    assert len(result.token_ids) == (0 if while_reading else 1)
    captured = capsys.readouterr()
    assert captured.out.removesuffix("\n") == result.text
    assert expected.text.startswith(result.text)
    assert ("while the prompt was read" in captured.err) == while_reading


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_how_far_a_long_prompt_is_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(answer, "SOON_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    engine.forget()
    answer.read_prompt(engine.stream([7] * 601))
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("\rreading 512 of 600 tokens" in shown) == is_terminal
    assert shown.endswith("\r\x1b[K" if is_terminal else "")
