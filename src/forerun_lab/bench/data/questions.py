"""Question files: one question per line, in the layout of MT-bench, EAGLE and Spec-Bench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.json_lines import JsonObject, read_objects

ONE_TURN_KEYS: Final = ("prompt", "question")  # used by human-eval and gsm8k


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row of a question file: the user's turns."""

    question_id: int | str
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


def read_questions(path: Path) -> tuple[Question, ...]:
    """The questions of a file, in its order.

    A row needs `turns`, or one turn under `prompt` or `question`. The default `question_id` is the row's index, from 0.
    Unknown keys are ignored, because each benchmark adds some.

    Raises:
        ConfigError: the file or a line cannot be used, two lines have the same id, or the file is empty.
    """
    places: dict[int | str, str] = {}
    questions = []
    for row, line in enumerate(read_objects(path)):
        question = _question(line, row)
        if question.question_id in places:
            raise ConfigError(
                f"{line.place}: question_id {question.question_id!r} is that of {places[question.question_id]} too: "
                "give every question its own"
            )
        places[question.question_id] = line.place
        questions.append(question)
    if not questions:
        raise ConfigError(f'{path} holds no question: lines such as {{"turns": ["Who are you?"]}} are needed')
    return tuple(questions)


def _question(line: JsonObject, row: int) -> Question:
    return Question(
        question_id=line.identifier("question_id", row),
        category=line.text("category", ""),
        turns=_turns(line),
        reference=_reference(line),
    )


def _turns(line: JsonObject) -> tuple[str, ...]:
    one_turn = next((key for key in ONE_TURN_KEYS if line.has(key)), None)
    key = "turns" if line.has("turns") or one_turn is None else one_turn
    turns = line.texts(key) if key == "turns" else (line.text(key),)
    if not turns or not all(turns):
        line.wrong(key, "text: a user's turn must not be empty")
    return turns


def _reference(line: JsonObject) -> tuple[str, ...]:
    """The reference answers; the key may hold a string, a list or nothing."""
    if isinstance(line.values.get("reference"), str):
        return (line.text("reference"),)
    return line.texts("reference", ())
