"""What contestants get to read, and which questions fit."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun import ConfigError
from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.checkpoints.open import open_source
from forerun_lab.bench.data.prompts import Reader
from tests.bench.players import question, with_template

LONG = question(0, "def f(x):\n    return", "def g(x):\n", "def h(x):\n")


@pytest.fixture(params=["text", "chat"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Reader:
    folder = open_source("builtin").folder if request.param == "text" else with_template(tmp_path)
    return Reader(tokenizer=read_tokenizer(folder), max_length=512)


def test_a_prompt_goes_on_after_the_answers(reader: Reader) -> None:
    texts = [reader.tokenizer.decode(reader.prompt_after(LONG, answers)) for answers in ((), ("1",), ("1", "2"))]
    if reader.tokenizer.has_chat_template:
        assert texts[0] == f"<user>{LONG.turns[0]}\n<assistant>"
        assert texts[1] == f"<user>{LONG.turns[0]}\n<assistant>1\n<user>{LONG.turns[1]}\n<assistant>"
    else:
        assert texts[0] == LONG.turns[0]
        assert texts[1] == f"{LONG.turns[0]}1\n{LONG.turns[1]}"
    assert texts[2].startswith(texts[1].removesuffix("\n<assistant>"))
    assert "2" in texts[2].removeprefix(texts[1])


@pytest.mark.parametrize("num_new", [1, 8, 60])
def test_there_is_room_for_all_turns_and_full_answers(reader: Reader, num_new: int) -> None:
    answers = [" value" * num_new for _ in LONG.turns]
    assert all(len(reader.tokenizer.encode(answer)) >= num_new for answer in answers)
    needed = len(reader.prompt_after(LONG, answers[:-1])) + num_new
    assert needed <= reader.room_for(LONG, num_new) <= 1.3 * needed + 20


def test_questions_too_long_are_left_out_and_counted_and_tuned_ones_are_others(reader: Reader) -> None:
    rows = [question(number, "x = 1\n" * (400 if number % 4 == 3 else 2)) for number in range(40)]
    choice = reader.choose(rows, 10, 16)
    assert choice.num_too_long == 10
    measured, others = ({row.question_id for row in side} for side in (choice.measured, choice.others))
    assert (len(measured), len(others)) == (10, 20), "no question that fits is lost"
    assert measured.isdisjoint(others)
    assert all(int(number) % 4 != 3 for number in measured | others)
    assert max(int(number) for number in measured) >= 36, "from the whole file"


def test_where_all_are_measured_none_is_left_to_tune_on(reader: Reader) -> None:
    choice = reader.choose([question(number) for number in range(4)], 10, 16)
    assert (len(choice.measured), choice.others) == (4, ())


def test_a_question_that_fits_to_the_last_token_is_taken(reader: Reader) -> None:
    room = reader.room_for(LONG, 16)
    assert replace(reader, max_length=room).choose([LONG], 1, 16).measured == (LONG,)
    with pytest.raises(ConfigError, match=rf"none of 1 questions fits with 16 new tokens .* context of {room - 1}"):
        replace(reader, max_length=room - 1).choose([LONG], 1, 16)
