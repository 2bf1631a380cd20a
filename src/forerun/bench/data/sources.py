"""The published data sets: address, revision and licence of each."""

from dataclasses import dataclass
from typing import Final

from forerun.bench.data.few_shot import CNNDM, GSM8K, HUMANEVAL, TINYSTORIES, Recipe

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
