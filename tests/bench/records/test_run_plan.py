"""What makes two runs the same run, and how questions are picked out of a file."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from forerun import ConfigError
from forerun_lab.bench.data.prompts import spread
from forerun_lab.bench.records.run_plan import RunPlan
from tests.bench.players import plan_of, question

PLAN = plan_of({"code": [question(number) for number in range(3)]}, ("draft_model",))
OTHERS: dict[str, Any] = {
    "target": "other",
    "draft": "other",
    "drafters": ("none",),
    "peers": ("transformers",),
    "questions": {"code": (0, 1, "2")},
    "temperatures": (0.0, 1.0),
    "repeats": 2,
    "max_new_tokens": 4,
    "seed": 1,
    "ignore_eos": True,
    "tune": True,
    "dtype": "float64",
    "weights": "int8",
    "inputs": "int8",
    "device": "cuda",
    "exactness": "exact",
    "kernels": "torch",
    "max_length": None,
    "num_threads": 2,
}


def through_json(plan: RunPlan) -> Any:
    return json.loads(json.dumps(plan.to_json()))


def test_a_plan_out_of_a_file_is_the_same_plan() -> None:
    PLAN.require_same(through_json(PLAN), "run.json")


@pytest.mark.parametrize("name", [field.name for field in fields(RunPlan)])
def test_a_plan_that_differs_in_one_field_is_another_and_the_field_is_named(name: str) -> None:
    other = replace(PLAN, **{name: OTHERS[name]})
    with pytest.raises(ConfigError, match=rf"run.json holds a run with {name} .* give another folder to --out"):
        other.require_same(through_json(PLAN), "run.json")
    missing = through_json(PLAN)
    del missing[name]
    if getattr(PLAN, name) is not None:
        with pytest.raises(ConfigError, match=f"{name} None"):
            PLAN.require_same(missing, "run.json")


def test_every_contestant_answers_every_question_each_time() -> None:
    plan = replace(PLAN, peers=("transformers",), temperatures=(0.0, 1.0), repeats=4)
    assert plan.contestants == ("none", "draft_model", "transformers")
    assert plan.num_answers == 3 * 3 * 2 * 4


@pytest.mark.parametrize(("num_rows", "num_wanted"), [(9, 3), (9, 4), (9, 9), (9, 20), (80, 20), (1, 1)])
def test_questions_are_spread_evenly_over_the_file(num_rows: int, num_wanted: int) -> None:
    rows = [question(number) for number in range(num_rows)]
    chosen = [int(row.question_id) for row in spread(rows, num_wanted)]
    assert len(chosen) == min(num_rows, num_wanted)
    assert chosen == sorted(set(chosen))
    gaps = [after - before for before, after in zip(chosen, [*chosen[1:], num_rows], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    assert chosen[0] == 0


def test_of_nothing_or_nothing_wanted_comes_nothing() -> None:
    assert spread([], 3) == spread([question(0)], 0) == []
