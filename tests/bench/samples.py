"""Small made-up record files of every kind, as the programs they are named after would write them."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from forerun.bench.answers import Match, Record, RoundColumns, Turn
from forerun.bench.record_files import to_line

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
        "extra": {"device": "cpu", "nested": [{"deep": None}]},
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
    )


def our_lines(num_records: int = 4, **changes: Any) -> list[str]:
    return [to_line(record(number, **changes)) for number in range(num_records)]


def eagle_lines(num_records: int = 4, *, num_choices: int = 1, seed: int = 0) -> list[str]:
    """As gen_ea_answer writes them: `idxs` are the numbers of the last rounds, from 0."""
    random = Random(seed)
    return [
        json.dumps(
            {
                "question_id": 81 + number,
                "answer_id": "E6pbycRSfuazwp84FoR4HX",
                "model_id": "a-70b-fp16-temperature-1.0",
                "choices": [_eagle_choice(random, index) for index in range(num_choices)],
                "tstamp": 1702393934.51,
            }
        )
        for number in range(num_records)
    ]


def spec_bench_lines(num_records: int = 4, *, num_turns: int = 2, seed: int = 0) -> list[str]:
    """As Spec-Bench's eval.py writes them, with its categories."""
    random = Random(seed)
    return [
        json.dumps(
            {
                "question_id": number,
                "category": CATEGORIES[number % len(CATEGORIES)],
                "answer_id": "7Wcj8JLWkyYRNqH4BvtoFg",
                "model_id": "a-7b-float16-temp-0.0",
                "choices": [{"index": 0} | _stepped(random, num_turns)],
                "tstamp": 1702393934.51,
            }
        )
        for number in range(num_records)
    ]


def swift_lines(num_records: int = 4, *, with_summary: bool = True, seed: int = 0) -> list[str]:
    """As SWIFT's eval.py writes them: no ids, one text that is no list, a summary at the end."""
    random = Random(seed)
    lines: list[dict[str, Any]] = []
    for _ in range(num_records):
        choice = _stepped(random, 1) | {"acceptance_rate": 0.9375}
        lines.append({"model_id": "a-13b", "choices": [choice | {"turns": "a text"}], "tstamp": 1702393934.51})
    summary = {
        "Mean accepted tokens": 3.5,
        "Token acceptance rate": 0.9375,
        "Best Skip Ratio": 0.45,
        "Best Attn Layer Set": [1, 3, 5],
        "Best MLP Layer Set": [2, 4],
    }
    return [json.dumps(line) for line in [*lines, *([summary] if with_summary else [])]]


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


def _eagle_choice(random: Random, index: int) -> dict[str, Any]:
    last_rounds = [random.randrange(1, 40) for _ in range(2)]
    return {
        "index": index,
        "turns": ["Dear friend,", "Sure!"],
        "idxs": last_rounds,
        "new_tokens": [2 * last + 3 for last in last_rounds],
        "wall_time": [random.uniform(0.5, 5.0) for _ in range(2)],
    }


def _stepped(random: Random, num_turns: int) -> dict[str, Any]:
    lengths = [[random.randrange(1, 6) for _ in range(random.randrange(1, 9))] for _ in range(num_turns)]
    return {
        "turns": ["an answer"] * num_turns,
        "decoding_steps": [len(turn) for turn in lengths],
        "new_tokens": [sum(turn) for turn in lengths],
        "wall_time": [random.uniform(0.5, 5.0) for _ in range(num_turns)],
        "accept_lengths": [length for turn in lengths for length in turn],
    }
