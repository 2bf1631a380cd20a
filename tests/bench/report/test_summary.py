"""Folders and files to rows, and rows to JSON and back."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.bench.records.answers import Record
from forerun_lab.bench.records.run_folder import RecordedRun
from forerun_lab.bench.report.bootstrap import Estimate
from forerun_lab.bench.report.compare import RunSpeeds
from forerun_lab.bench.report.summary import Row, Summary, summarise, summarise_run
from tests.bench.sample_run import about, sample_records, write_sample_run

SMALL = {
    "datasets": ("qa", "gsm8k"),
    "contestants": ("none", "draft_model", "llama.cpp"),
    "num_prompts": 6,
    "repeats": 2,
    "num_tokens": 24,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_run(tmp_path_factory.mktemp("run"), **SMALL)


@pytest.fixture(scope="module")
def summary(folder: Path) -> Summary:
    return summarise(folder)


def row(summary: Summary, dataset: str | None, contestant: str, temperature: float = 0.0) -> Row:
    return next(
        row
        for row in summary.rows
        if (row.dataset, row.contestant, row.temperature) == (dataset, contestant, temperature)
    )


def test_there_is_a_row_for_everything_and_the_baseline_comes_first(summary: Summary) -> None:
    assert len(summary.rows) == 3 * 3 * 2
    assert summary.contestants == ("none", "draft_model", "llama.cpp")
    assert summary.datasets == ("qa", "gsm8k")
    assert summary.temperatures == (0.0, 1.0)
    assert [row.dataset for row in summary.rows[:9:3]] == ["qa", "gsm8k", None]


def test_the_row_over_all_is_all_tokens_over_all_their_time(summary: Summary) -> None:
    found = row(summary, None, "draft_model")
    prompts = [
        prompt
        for each in summary.rows
        if each.dataset is not None and each.contestant == "draft_model" and each.temperature == 0.0
        for prompt in each.prompts
    ]
    assert found.speed is not None
    seconds = sum(prompt.num_tokens / prompt.tokens_per_s for prompt in prompts)
    assert found.speed.value == pytest.approx(sum(prompt.num_tokens for prompt in prompts) / seconds)
    assert (found.speed.num_prompts, found.num_answers, found.prompts) == (12, 24, ())


def test_ratios_refer_to_the_baseline_on_the_same_prompts(summary: Summary) -> None:
    none = row(summary, "gsm8k", "none")
    drafter = row(summary, "gsm8k", "draft_model")
    assert none.ratio is None
    assert drafter.ratio is not None
    assert none.speed is not None
    assert drafter.speed is not None
    assert drafter.ratio.value == pytest.approx(drafter.speed.value / none.speed.value)


def test_json_gives_the_same_speeds_back(summary: Summary, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(summary.to_json())
    expected = RunSpeeds.of(summary)
    found = RunSpeeds.read(file)
    assert (found.kind, {key: tuple(row) for key, row in found.rows.items()}) == (expected.kind, dict(expected.rows))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 2}', '{"version": 2, "rows": 3}'])
def test_other_json_is_refused_with_a_reason(text: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is not a report"):
        RunSpeeds.read(file)


def test_unknown_arrival_times_of_one_turn_all_speeds_into_those_with_prefill() -> None:
    records = sample_records(**SMALL)
    blind = [
        replace(record, turns=tuple(replace(turn, emitted_at_s=()) for turn in record.turns))
        if record.contestant == "llama.cpp"
        else record
        for record in records
    ]
    found = summarise_run(RecordedRun(records=tuple(blind)), baseline="none")
    none = row(found, None, "none")
    assert found.speed_kind == "whole"
    assert none.speed is not None
    rows = [each for each in found.rows if (each.contestant, each.temperature) == ("none", 0.0)]
    speeds = [prompt.tokens_per_s for each in rows for prompt in each.prompts]
    assert sum(speeds) / len(speeds) == pytest.approx(none.whole.mean) != pytest.approx(none.decode.mean)


@pytest.mark.parametrize("absent", ["draft_model", "none"])
def test_missing_answers_are_told_and_ratios_use_common_prompts(absent: str) -> None:
    records = [record for record in sample_records(**SMALL) if record.contestant != absent or record.dataset == "gsm8k"]
    found = summarise_run(RecordedRun(records=tuple(records), about=about(records)), baseline="none")
    ratio = row(found, None, "draft_model").ratio
    assert ratio is not None
    assert ratio.num_prompts == 6
    assert ratio.value == pytest.approx(value_of(row(found, "gsm8k", "draft_model").ratio))
    assert f"{absent} answered 6 of 12 questions at temperature 0" in found.notes[0]


def value_of(found: Estimate | None) -> float:
    assert found is not None
    return found.value


def answers(contestant: str, question_id: int, *, seconds_per_token: float) -> list[Record]:
    """One answer of 65 tokens, one an arrival."""
    (record,) = sample_records(
        datasets=("qa",), contestants=("none",), temperatures=(0.0,), num_prompts=1, repeats=1, num_tokens=65
    )
    (turn,) = record.turns
    turn = replace(
        turn, num_new_tokens=65, emitted=(1,) * 65, emitted_at_s=tuple(0.1 + seconds_per_token * n for n in range(65))
    )
    return [replace(record, contestant=contestant, question_id=question_id, turns=(turn,))]


def test_a_drafted_text_is_compared_with_that_of_the_same_engine_without_drafts() -> None:
    names = ("none", "draft_model", "llama_cpp", "llama_cpp_lookup")
    records = [
        replace(record, contestant=name)
        for name in names
        for record in sample_records(datasets=("qa",), contestants=("none",), num_prompts=2, repeats=1)
    ]
    changed = records[-1].turns[0]
    token_ids = (*changed.token_ids[:5], changed.token_ids[5] + 1, *changed.token_ids[6:])
    records[-1] = replace(records[-1], turns=(replace(changed, token_ids=token_ids), *records[-1].turns[1:]))
    kinds = {name: {"kind": "peer" if "llama" in name else "drafter"} for name in names}
    summary = summarise_run(RecordedRun(records=tuple(records), about={"contestants": kinds}), baseline="none")
    found = {name: row(summary, None, name, records[-1].temperature).kept_texts for name in names}
    assert found["none"] is found["llama_cpp"] is None
    own = found["draft_model"]
    lookup = found["llama_cpp_lookup"]
    assert own is not None
    assert lookup is not None
    assert (own.num_same, own.num_different, own.first_difference) == (own.num_compared, 0, None)
    assert (lookup.num_different, lookup.first_difference) == (1, 5)
