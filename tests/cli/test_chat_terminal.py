"""forerun chat on a terminal: interrupts, pasted lines, completion, and lines that break between words."""

import signal
import sys
import time
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals", allow_module_level=True)

from forerun.cli.chat.transcript import MAX_BYTES, read_transcript
from forerun.core.kept_files import KeptFiles
from tests.cli.conftest import Run
from tests.cli.terminals import PATIENCE_S, OnTerminal, lines_of, running


@pytest.fixture
def chatting(request: pytest.FixtureRequest, target: str) -> Iterator[OnTerminal]:
    flags = getattr(request, "param", ())
    with running("chat", target, "--drafter", "none", "-n", "40", "--logit-bias", "40=1000", *flags) as chat:
        yield chat


@pytest.mark.parametrize("chatting", [("--device", "paced:target=20ms")], ids=["slowly"], indirect=True)
def test_ctrl_c_stops_the_answer_and_at_the_prompt_loses_nothing(chatting: OnTerminal) -> None:
    process, type_in, read_until = chatting
    read_until(b"> ")
    type_in(b"Hi\r")
    read_until(b"III")  # the answer has begun
    process.send_signal(signal.SIGINT)
    read_until(b"[stopped]\r\n")
    read_until(b" tokens/s ")
    read_until(b"> ")
    type_in(b"half a line")
    read_until(b"half a line")
    for _ in range(3):
        time.sleep(0.2)  # until it reads, which is behind its prompt
        process.send_signal(signal.SIGINT)
        read_until(b"> ")
    type_in(b"/stats\r")
    read_until(b"tokens/s")
    type_in(b"/exit\r")
    assert process.wait(PATIENCE_S) == 0


def test_a_stopped_answer_is_marked_where_it_is_kept_and_goes_on_later(target: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    flags = ("chat", target, "--drafter", "none", "--logit-bias", "40=1000", "--resume", str(file))
    with running(*flags, "-n", "400", "--device", "paced:target=20ms") as (process, type_in, read_until):
        read_until(b"> ")
        type_in(b"Hi\r")
        read_until(b"III")
        process.send_signal(signal.SIGINT)
        read_until(b"[stopped]")
        read_until(b"> ")
        type_in(b"/exit\r")
        assert process.wait(PATIENCE_S) == 0
    (before,) = read_transcript(file, KeptFiles(MAX_BYTES)).turns
    assert before.is_stopped
    with running(*flags, "-n", "7") as (process, type_in, read_until):
        read_until(b"1 turn so far; the last question was: Hi")
        read_until(b"> ")
        type_in(b"/continue\r")
        type_in(b"/stats\r")
        read_until(b"prompt of ")  # said behind the answer, when its turn is kept
    (after,) = read_transcript(file, KeptFiles(MAX_BYTES)).turns
    assert after.answer == before.answer + 7 * "I"
    assert not after.is_stopped


@pytest.mark.slow
def test_one_message_on_a_terminal_is_followed_by_its_speed(target: str) -> None:
    with running("run", target, "Hi", "-n", "8", "--ignore-eos", "--drafter", "none") as (process, _, read_until):
        read_until(b"cut after 8 tokens")
        read_until(" tokens/s · 8 tokens · first token after ".encode())
        assert process.wait(PATIENCE_S) == 0


def test_commands_are_completed_questions_asked_and_pasted_lines_are_one_message(chatting: OnTerminal) -> None:
    process, type_in, read_until = chatting
    read_until(b"> ")
    type_in(b"/und\t\r")
    read_until(b"there is no turn to remove")
    type_in(b"/set max_new\t 300\r")
    type_in(b"one\r")
    read_until(b"cut after 300")
    type_in(b"two\r")
    read_until(b"drop the oldest 1 turn? [Y/n]")
    type_in(b"n\r")
    read_until(b"exceeds the context of 512")
    type_in(b"two\r")
    read_until(b"[Y/n]")
    type_in(b"\r")
    read_until(b"left out from now on")
    read_until(b"cut after 300")
    type_in(b"/set max_new_tokens 40\r")
    type_in(b"\x1b[200~one\n/two\nthree\x1b[201~")
    read_until(b"three")
    type_in(b"\r")
    assert b"no command" not in read_until(b"cut after 40")
    type_in(b"/exit\r")
    assert b"III" not in read_until(b"/exit"), "the other lines are answered too"
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_the_lines_of_an_answer_break_between_words(run: Run) -> None:
    message = '"""Return the number of'
    flags = ("chat", "builtin", "-n", "70", "--drafter", "none", "--ignore-eos", "--repetition-penalty", "1.3")
    expected = run(*flags, "-q", message).stdout
    with running(*flags, num_columns=48) as (process, type_in, read_until):
        read_until(b"> ")
        type_in(message.encode() + b"\r")
        lines = lines_of(read_until(b"(cut").decode().partition("(cut")[0])
        type_in(b"/exit\r")
        assert process.wait(PATIENCE_S) == 0
    answer = list(dropwhile(lambda line: message not in line, lines))[1:-1]
    assert " ".join(answer).split() == expected.split()
    assert len(answer) > expected.count("\n")
    assert max(map(len, answer)) < 48
