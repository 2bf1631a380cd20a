"""What makes two runs the same run, and how questions are picked out of a file."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from forerun import ConfigError, DraftModel, EngineConfig, SamplingParams
from forerun_lab.bench.data.prompts import spread
from forerun_lab.bench.records.run_plan import RunPlan
from tests.bench.players import plan_of, question

PLAN = plan_of({"code": [question(number) for number in range(3)]}, ("draft_model",))
OTHERS: dict[str, Any] = {
    "draft": "other",
    "drafters": {"none": PLAN.config},
    "peers": ("transformers",),
    "questions": {"code": (0, 1, "2")},
    "temperatures": (0.0, 1.0),
    "repeats": 2,
    "tune": True,
}
OTHER_ENGINE: dict[str, Any] = {"target": "other", "dtype": "float64", "device": "cuda", "target_ranks": 2}
OTHER_SAMPLING: dict[str, Any] = {"max_new_tokens": 4, "seed": 1, "ignore_eos": True, "top_p": 0.9}


def others() -> Iterator[tuple[str, RunPlan]]:
    """Plans that differ in one setting, with its name."""
    for name, value in OTHERS.items():
        yield name, replace(PLAN, **{name: value})
    for name, value in OTHER_ENGINE.items():
        config = replace(PLAN.config, **{name: value})
        yield name, replace(PLAN, config=config, drafters=dict.fromkeys(PLAN.drafters, config))
    for name, value in OTHER_SAMPLING.items():
        yield name, replace(PLAN, sampling=replace(PLAN.sampling, **{name: value}))


def through_json(plan: RunPlan) -> Any:
    return json.loads(json.dumps(plan.to_json()))


def test_a_plan_out_of_a_file_is_the_same_plan() -> None:
    PLAN.require_same(through_json(PLAN), "run.json")


@pytest.mark.parametrize(("name", "other"), list(others()))
def test_a_plan_that_differs_in_one_setting_is_another_and_the_setting_is_named(name: str, other: RunPlan) -> None:
    with pytest.raises(ConfigError, match=rf"run.json holds a run with {name} .* give another folder to --out"):
        other.require_same(through_json(PLAN), "run.json")
    missing = through_json(PLAN)
    del missing[name]
    if through_json(PLAN)[name] is not None:
        with pytest.raises(ConfigError, match=f"{name} None"):
            PLAN.require_same(missing, "run.json")


def test_a_plan_has_every_setting_of_engine_sampling_and_drafters() -> None:
    shaped = replace(PLAN.config, target_ranks=2, drafter=DraftModel(depth=3))
    written = through_json(replace(PLAN, drafters={"none": PLAN.config, "mine": shaped}))
    names = [field.name for kind in (EngineConfig, SamplingParams, RunPlan) for field in fields(kind)]
    assert set(names) - written.keys() == {"drafter", "temperature", "config", "sampling"}
    assert written["drafters"]["none"] == {"drafter": {"name": "none"}}
    mine = written["drafters"]["mine"]
    assert (mine["target_ranks"], mine["drafter"]["name"], mine["drafter"]["depth"]) == (2, "draft_model", 3)
    assert set(mine) == {"drafter", "target_ranks"}, "what is that of plain decoding is not repeated"


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
