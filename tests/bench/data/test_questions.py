"""Question files of several benchmarks."""

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.questions import Question, read_questions
from tests.bench.samples import as_bytes, question_lines


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "question.jsonl"
    path.write_bytes(as_bytes([json.dumps(row) for row in rows]))
    return path


def test_rows_of_mt_bench_human_eval_and_gsm8k_are_read(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_bytes(as_bytes(question_lines()))
    assert read_questions(path) == (
        Question(question_id=81, category="writing", turns=("Write.", "Again."), reference=("It.", "")),
        Question(question_id="b", category="", turns=("Who?",), reference=("I.",)),
        Question(question_id=2, category="", turns=("def f():\n",)),
        Question(question_id=3, category="", turns=("How many?",)),
    )


def test_an_id_given_twice_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, {"question_id": 5, "turns": ["a"]}, {"turns": ["b"]}, {"question_id": 5, "turns": ["c"]})
    with pytest.raises(ConfigError, match=r"question\.jsonl:3: question_id 5 is that of .*question\.jsonl:1 too"):
        read_questions(path)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"category": "qa"}, "turns is missing"),
        ({"turns": []}, "turns is"),
        ({"turns": [""]}, "must not be empty"),
        ({"turns": "Who?"}, "must be a list"),
        ({"turns": ["a", 1]}, r"turns\[1\] is 1"),
        ({"prompt": ""}, "prompt is ''"),
        ({"prompt": ["a"]}, r"prompt is \['a'\]"),
        ({"turns": ["a"], "category": 3}, "category is 3"),
        ({"turns": ["a"], "question_id": 1.5}, "question_id is 1.5"),
        ({"turns": ["a"], "reference": {}}, "reference is {}"),
        ({"turns": ["\ud800"]}, "valid characters"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"question\.jsonl:2: .*{complaint}"):
        read_questions(write(tmp_path, {"turns": ["fine"]}, row))


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no question"):
        read_questions(write(tmp_path))
