"""Questions made from raw data: a few solved examples, then the task, as in SWIFT's prompts for models without chat.

SWIFT (arXiv 2410.06916, hemingkx/SWIFT) publishes its prompts for CNN/DM and HumanEval; those for GSM8K and
TinyStories, which its paper also measures, are ours. SWIFT clips prompts that do not fit into the context; we do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numpy.random import default_rng

from forerun.bench.data.json_lines import JsonObject, read_objects
from forerun.bench.data.questions import Question
from forerun.core.errors import ConfigError

SEED: Final = 2024  # as in SWIFT's evaluation script
MAX_QUESTIONS: Final = 1000  # as in the paper
NUM_OPENING_WORDS: Final = 16
NEWLINE: Final = "\n"
Text = Callable[[JsonObject], str]  # makes a text from a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How rows of raw data become prompts.

    Args:
        needs: keys that a row must have, for messages.
        task: the text of the task.
        answer: the solution, for solved examples.
        shot: a solved example, if it is not the task followed by the answer.
        is_shuffled: take rows in random order; otherwise in the file's order.
    """

    needs: tuple[str, ...]
    task: Text
    answer: Text = lambda row: ""
    shot: Text | None = None
    num_shots: int = 0
    is_shuffled: bool = True


def make_questions(recipe: Recipe, raw: Path, shots: Path | None) -> tuple[Question, ...]:
    """At most 1000 questions from the rows of `raw`; a question's id is the number of its row, from 0.

    The solved examples are the first rows of `shots`, or of `raw`, whose first rows then are not used as questions. If
    the recipe shuffles, the order is that of numpy's `default_rng(2024).permutation`, which `datasets` uses for SWIFT,
    so a whole test split in its original order gives SWIFT's own questions.

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
    shot = recipe.shot or (lambda row: recipe.task(row) + recipe.answer(row))
    prefix = "".join(map(shot, examples))
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


CNNDM: Final = Recipe(
    needs=("article", "highlights"),
    num_shots=1,
    task=lambda row: f"Article: {row.text('article')}\nSummary:",
    answer=lambda row: f" {row.text('highlights').replace(NEWLINE, '')}\n",
)
GSM8K: Final = Recipe(
    needs=("question", "answer"),
    num_shots=5,
    task=lambda row: f"Question: {row.text('question')}\nAnswer:",
    answer=lambda row: f" {row.text('answer')}\n\n",
)
TINYSTORIES: Final = Recipe(
    needs=("text",),
    num_shots=1,
    task=lambda row: " ".join(["Story:", *row.text("text").split()[:NUM_OPENING_WORDS]]),
    shot=lambda row: f"Story: {row.text('text').strip()}\n\n",
)
HUMANEVAL: Final = Recipe(  # tabs instead of four spaces, as in SWIFT: fewer tokens to draft
    needs=("prompt",), task=lambda row: row.text("prompt").replace("    ", "\t"), is_shuffled=False
)
