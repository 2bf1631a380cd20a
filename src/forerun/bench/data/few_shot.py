"""Questions made from raw data: a few solved examples, then the task, as SWIFT puts its tasks to models without chat.

SWIFT (arXiv 2410.06916, hemingkx/SWIFT) publishes how it words CNN/DM and HumanEval; GSM8K and TinyStories, which its
paper measures too, are worded here. It clips prompts that do not fit into the context; we clip nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numpy.random import default_rng

from forerun.bench.data.json_lines import JsonObject, read_objects
from forerun.bench.data.questions import Question
from forerun.core.errors import ConfigError

SEED: Final = 2024  # of SWIFT's own evaluation script
MAX_QUESTIONS: Final = 1000  # of the paper
NUM_OPENING_WORDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How rows of raw data become prompts.

    Args:
        needs: keys of a row, for messages.
        shot: a solved example.
        task: what is to be solved.
        is_shuffled: take rows in a random order; otherwise in the file's.
    """

    needs: tuple[str, ...]
    num_shots: int
    shot: Callable[[JsonObject], str]
    task: Callable[[JsonObject], str]
    is_shuffled: bool = True


def make_questions(recipe: Recipe, raw: Path, shots: Path | None) -> tuple[Question, ...]:
    """At most 1000 questions from the rows of `raw`; a question's id is the number of its row, from 0.

    Shots are the first rows of `shots`, or of `raw`, which then are not asked. The others are asked in the order of
    numpy's `default_rng(2024).permutation`, where the recipe shuffles: what `datasets` does for SWIFT, so that a whole
    test split in its own order gives SWIFT's own questions.

    Raises:
        ConfigError: a file cannot be used, or has too few rows.
    """
    rows = tuple(read_objects(raw))
    examples = rows[: recipe.num_shots] if shots is None else _first(shots, recipe.num_shots)
    first = recipe.num_shots if shots is None else 0
    if len(examples) < recipe.num_shots or len(rows) <= first:
        raise ConfigError(
            f"{raw} has {len(rows)} rows, {len(examples)} examples come from {shots or 'there too'}: "
            f"{recipe.num_shots} examples and at least one row to ask are needed"
        )
    prefix = "".join(recipe.shot(example) for example in examples)
    return tuple(
        Question(question_id=number, category="", turns=(prefix + recipe.task(rows[number]),))
        for number in _order(range(first, len(rows)), is_shuffled=recipe.is_shuffled)
    )


def _first(path: Path, num_wanted: int) -> tuple[JsonObject, ...]:
    return tuple(row for row, _ in zip(read_objects(path), range(num_wanted), strict=False))


def _order(numbers: Sequence[int], *, is_shuffled: bool) -> list[int]:
    if not is_shuffled:
        return list(numbers[:MAX_QUESTIONS])
    return [numbers[place] for place in default_rng(SEED).permutation(len(numbers))[:MAX_QUESTIONS].tolist()]


def _article(row: JsonObject) -> str:
    return f"Article: {row.text('article')}\nSummary:"


def _summarised(row: JsonObject) -> str:
    highlights = row.text("highlights").replace("\n", "")
    return f"{_article(row)} {highlights}\n"


def _problem(row: JsonObject) -> str:
    return f"Question: {row.text('question')}\nAnswer:"


def _solved(row: JsonObject) -> str:
    return f"{_problem(row)} {row.text('answer')}\n\n"


def _story(row: JsonObject) -> str:
    return f"Story: {row.text('text').strip()}\n\n"


def _opening(row: JsonObject) -> str:
    """The first words of a story, to be gone on with."""
    return "Story: " + " ".join(row.text("text").split()[:NUM_OPENING_WORDS])


def _header(row: JsonObject) -> str:
    """Tabs for four spaces, as in SWIFT: fewer tokens to draft."""
    return row.text("prompt").replace("    ", "\t")


CNNDM: Final = Recipe(needs=("article", "highlights"), num_shots=1, shot=_summarised, task=_article)
GSM8K: Final = Recipe(needs=("question", "answer"), num_shots=5, shot=_solved, task=_problem)
TINYSTORIES: Final = Recipe(needs=("text",), num_shots=1, shot=_story, task=_opening)
HUMANEVAL: Final = Recipe(needs=("prompt",), num_shots=0, shot=_header, task=_header, is_shuffled=False)
