"""The published data sets: address, revision and licence of each, and how raw data becomes questions.

A few solved examples come first, then the task, as in SWIFT's prompts for models without chat. SWIFT (arXiv 2410.06916,
hemingkx/SWIFT) publishes its prompts for CNN/DM and HumanEval; those for GSM8K and TinyStories, which its paper also
measures, are ours. SWIFT clips prompts that do not fit into the context; we do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numpy.random import default_rng

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.json_lines import JsonObject, read_objects
from forerun_lab.bench.data.questions import Question

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


QUESTIONS: Final = "question.jsonl"
RAW: Final = "raw.jsonl"
SHOTS: Final = "shots.jsonl"

EAGLE: Final = "SafeAILab/EAGLE/cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b/eagle/data"
SPEC_BENCH: Final = "hemingkx/Spec-Bench/c815350d422bb95236341ab534935c2cd99737d6/data/spec_bench"
GRADE_SCHOOL_MATH: Final = "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
HUMAN_EVAL: Final = "openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file that can be downloaded.

    Args:
        name: the file's local name.
        path: repository, commit and path on the server; unpacked if it ends in .gz.
        sha256: checksum of the bytes sent; None if it is not known, so that only the rows are counted.
        num_rows: number of lines.
    """

    name: str
    path: str
    num_rows: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """A published data set.

    Args:
        origin: where the data is from, in words.
        downloads: files to download; empty if the data is not published as plain files.
        recipe: how raw rows become questions; None for files of questions.
        advice: how to make the raw file if it cannot be downloaded.
    """

    licence: str
    origin: str
    downloads: tuple[Download, ...] = ()
    recipe: Recipe | None = None
    advice: str = ""


def _eagle(name: str, sha256: str, licence: str) -> DataSource:
    path = f"{EAGLE}/{name}/question.jsonl"
    return DataSource(
        licence=f"Apache-2.0 (EAGLE's selection); {licence}",
        origin=path,
        downloads=(Download(name=QUESTIONS, path=path, num_rows=80, sha256=sha256),),
    )


def _to_json(dataset: str, split: str, num_rows: int) -> str:
    """How to make a raw file with Hugging Face's `datasets`."""
    call = f"load_dataset({dataset}, split='{split}').to_json('{RAW}')"
    return f'python -c "from datasets import load_dataset; {call}" makes it, {num_rows} rows'


SOURCES: Final = {
    "mt_bench": _eagle(
        "mt_bench",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        "MT-bench: CC BY 4.0, or Apache-2.0 (LMSYS)",
    ),
    "humaneval": _eagle(
        "humaneval", "ce0244e2b228339e9a11afc63a151719beede1e389fdaec7cd9751d33902180e", "HumanEval: MIT"
    ),
    "gsm8k": _eagle("gsm8k", "a55920b2f2aac724241124c59e5b8e8168dbbeb2ab0fdbee17d5b0ab6db5ff27", "GSM8K: MIT"),
    "alpaca": _eagle(
        "alpaca",
        "8ad3e5a7fc61b88d8e25edb81a52a2ce00a04494d5694c122cb11a5cc26a00df",
        "Alpaca: CC BY-NC 4.0, for research only",
    ),
    "sum": _eagle(
        "sum",
        "916876f0c42f938a944de96eed16e51425f29f27438cca5c9ef4737c0fedf771",
        "CNN/DailyMail: the articles belong to their publishers",
    ),
    "qa": _eagle(
        "qa", "04252e41ab00bcc03b11940b4a3766cf40ae0b76a09c4f56968ba952f0b029f3", "Natural Questions: CC BY-SA 3.0"
    ),
    "spec_bench": DataSource(
        licence="Apache-2.0 (Spec-Bench's selection); MT-bench, WMT14, CNN/DailyMail, Natural Questions, GSM8K and DPR "
        "under their own licences",
        origin=f"{SPEC_BENCH}/question.jsonl",
        downloads=(Download(name=QUESTIONS, path=f"{SPEC_BENCH}/question.jsonl", num_rows=480),),
    ),
    "swift_cnndm": DataSource(
        licence="CNN/DailyMail: the articles belong to their publishers",
        origin="abisee/cnn_dailymail 3.0.0, test split, published as parquet only",
        recipe=CNNDM,
        advice=_to_json("'abisee/cnn_dailymail', '3.0.0'", "test", 11490),
    ),
    "swift_gsm8k": DataSource(
        licence="GSM8K: MIT",
        origin=f"{GRADE_SCHOOL_MATH}/test.jsonl, shots from train.jsonl",
        downloads=(
            Download(
                name=SHOTS,
                path=f"{GRADE_SCHOOL_MATH}/train.jsonl",
                num_rows=7473,
                sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
            ),
            Download(
                name=RAW,
                path=f"{GRADE_SCHOOL_MATH}/test.jsonl",
                num_rows=1319,
                sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            ),
        ),
        recipe=GSM8K,
    ),
    "swift_tinystories": DataSource(
        licence="TinyStories: CDLA-Sharing-1.0",
        origin="roneneldan/TinyStories, validation split, published as parquet and unmarked text only",
        recipe=TINYSTORIES,
        advice=_to_json("'roneneldan/TinyStories'", "validation", 21990),
    ),
    "swift_humaneval": DataSource(
        licence="HumanEval: MIT",
        origin=f"{HUMAN_EVAL}/HumanEval.jsonl.gz",
        downloads=(
            Download(
                name=RAW,
                path=f"{HUMAN_EVAL}/HumanEval.jsonl.gz",
                num_rows=164,
                sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            ),
        ),
        recipe=HUMANEVAL,
    ),
}
