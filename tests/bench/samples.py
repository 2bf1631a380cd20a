"""Small made-up record and question files."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from forerun.core.steps import SkipReport
from forerun_lab.bench.records.answers import Match, Record, RoundColumns, Turn
from forerun_lab.bench.records.record_files import to_line

CATEGORIES = ("writing", "math", "translation", "qa")


def record(number: int, *, num_turns: int = 2, **changes: Any) -> Record:
    """The record of question `number`: the same in every process."""
    values: dict[str, Any] = {
        "question_id": number,
        "category": CATEGORIES[number % len(CATEGORIES)],
        "contestant": "draft_model",
        "dataset": "mt_bench",
        "temperature": 0.6,
        "turns": tuple(turn(Random(f"{number}/{index}")) for index in range(num_turns)),
        "started_at": 1.7e9 + number,
        "seed": number,
    }
    return Record(**values | changes)


def turn(random: Random) -> Turn:
    num_rounds = random.randrange(1, 9)
    emitted = tuple(random.randrange(1, 5) for _ in range(num_rounds))
    return Turn(
        text="Grüße \u2028 \n" + "x" * random.randrange(20),
        num_new_tokens=sum(emitted) - 1,
        wall_s=random.uniform(0.1, 2.0),
        token_ids=tuple(random.randrange(4096) for _ in range(sum(emitted) - 1)),
        num_prompt_tokens=17,
        emitted=emitted,
        emitted_at_s=tuple(0.01 * (index + 1) for index in range(num_rounds)),
        num_near_ties=1,
        rounds=RoundColumns(
            num_drafted=(7,) * num_rounds,
            num_verified=(8,) * num_rounds,
            num_accepted=tuple(count - 1 for count in emitted),
            draft_s=tuple(random.random() for _ in emitted),
            verify_s=tuple(random.random() for _ in emitted),
            wait_s=(0.0,) * num_rounds,
            was_hit=tuple(random.random() < 0.5 for _ in emitted),
        ),
        match=Match(first_difference=3, margin=-0.25, is_near_tie=True),
        skips=SkipReport(
            is_searching=True, attention=(1, 3), mlp=(), matchness=0.5, hit_rate=None, num_scored=4, search_s=0.25
        ),
    )


def our_lines(num_records: int = 4, **changes: Any) -> list[str]:
    return [to_line(record(number, **changes)) for number in range(num_records)]


def question_lines() -> list[str]:
    """As MT-bench, human-eval and gsm8k have them."""
    rows: list[dict[str, Any]] = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["It.", ""]},
        {"question_id": "b", "turns": ["Who?"], "reference": "I.", "source": {"file": "x"}},
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "assert f()"},
        {"question": "How many?", "answer": "#### 3"},
    ]
    return [json.dumps(row) for row in rows]


def as_bytes(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
