"""Record files of EAGLE, Spec-Bench and SWIFT, and the comparisons their scripts print."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.bench.answers import Record, Turn
from forerun.bench.foreign_records import read_any_records, temperature_in
from forerun.bench.record_speed import Speeds, accept_lengths, speed_comparison, speedup_over_repeats
from forerun.core.errors import ConfigError
from tests.bench.samples import (
    CATEGORIES,
    as_bytes,
    eagle_lines,
    our_lines,
    record,
    spec_bench_lines,
    swift_lines,
)

KINDS = {"forerun": our_lines, "eagle": eagle_lines, "spec_bench": spec_bench_lines, "swift": swift_lines}


def write(folder: Path, lines: list[str], name: str = "a-model-temp-0.2-top-p-0.85.jsonl") -> Path:
    path = folder / name
    path.write_bytes(as_bytes(lines))
    return path


def changed(line: str, **changes: Any) -> str:
    """The line with other values in its first choice; None leaves a key out."""
    values = json.loads(line)
    choice = values["choices"][0] | changes
    values["choices"][0] = {key: value for key, value in choice.items() if value is not None}
    return json.dumps(values)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_by_its_lines_whose_it_is(tmp_path: Path, kind: str) -> None:
    found = read_any_records(write(tmp_path, KINDS[kind]()))
    assert found.kind == kind
    assert len(found.records) == 4
    assert found.notes == ()


def test_our_own_file_is_read_whole(tmp_path: Path) -> None:
    assert read_any_records(write(tmp_path, our_lines())).records == tuple(map(record, range(4)))


def test_an_eagle_file_gives_turns_with_counts_and_times(tmp_path: Path) -> None:
    lines = eagle_lines()
    found = read_any_records(write(tmp_path, lines))
    choice = json.loads(lines[0])["choices"][0]
    first = found.records[0]
    assert (first.question_id, first.contestant, first.temperature) == (81, "a-70b-fp16-temperature-1.0", 1.0)
    assert (first.dataset, first.started_at) == (tmp_path.name, 1702393934.51)
    assert [turn.text for turn in first.turns] == choice["turns"]
    assert [turn.num_new_tokens for turn in first.turns] == choice["new_tokens"]
    assert [turn.wall_s for turn in first.turns] == choice["wall_time"]
    assert first.extra == {"num_rounds": [last + 1 for last in choice["idxs"]]}


def test_several_choices_are_repeats_and_a_note(tmp_path: Path) -> None:
    found = read_any_records(write(tmp_path, eagle_lines(2, num_choices=3)))
    assert [(record.question_id, record.repeat) for record in found.records] == [
        (81, 0), (81, 1), (81, 2), (82, 0), (82, 1), (82, 2),
    ]  # fmt: skip
    assert "several answers" in found.notes[0]


def test_a_spec_bench_file_gives_every_turn_its_rounds(tmp_path: Path) -> None:
    lines = spec_bench_lines()
    first = read_any_records(write(tmp_path, lines), dataset="spec_bench").records[0]
    choice = json.loads(lines[0])["choices"][0]
    assert [len(turn.emitted) for turn in first.turns] == choice["decoding_steps"]
    assert accept_lengths(first) == tuple(choice["accept_lengths"])
    assert (first.category, first.dataset, first.temperature) == (CATEGORIES[0], "spec_bench", 0.0)


def test_rounds_numbered_from_0_are_told_apart_by_their_sum(tmp_path: Path) -> None:
    line = changed(spec_bench_lines(1)[0], decoding_steps=[1, 2], accept_lengths=[1, 2, 3, 4, 5])
    (found,) = read_any_records(write(tmp_path, [line])).records
    assert [turn.emitted for turn in found.turns] == [(1, 2), (3, 4, 5)]


def test_rounds_that_cannot_be_told_apart_are_kept_for_the_whole_answer(tmp_path: Path) -> None:
    line = changed(spec_bench_lines(1)[0], decoding_steps=[1, 2], accept_lengths=[1, 2, 3, 4])
    found = read_any_records(write(tmp_path, [line]))
    assert [turn.emitted for turn in found.records[0].turns] == [(), ()]
    assert accept_lengths(found.records[0]) == (1, 2, 3, 4)
    assert "does not add up" in found.notes[0]


def test_a_swift_file_gives_numbered_questions_and_its_summary(tmp_path: Path) -> None:
    found = read_any_records(write(tmp_path, swift_lines()))
    assert [record.question_id for record in found.records] == [0, 1, 2, 3]
    assert found.records[0].contestant == "a-model-temp-0.2-top-p-0.85"
    assert found.records[0].temperature == 0.2
    assert found.records[0].turns[0].text == "a text"
    assert found.records[0].extra["acceptance_rate"] == 0.9375
    assert found.summary == {
        "Mean accepted tokens": 3.5,
        "Token acceptance rate": 0.9375,
        "Best Skip Ratio": 0.45,
        "Best Attn Layer Set": [1, 3, 5],
        "Best MLP Layer Set": [2, 4],
    }


def test_a_summary_alone_is_a_swift_file_without_records(tmp_path: Path) -> None:
    found = read_any_records(write(tmp_path, swift_lines(0)))
    assert (found.kind, found.records, found.summary["Best Skip Ratio"]) == ("swift", (), 0.45)


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("mt_bench/a.jsonl", "mt_bench"),
        ("data/spec_bench/model_answer/a.jsonl", "spec_bench"),
        ("cnndm/cnndm_10/model_answer/a-13b/a.jsonl", "cnndm_10"),
    ],
)
def test_foreign_records_are_of_the_folders_data_set(tmp_path: Path, name: str, dataset: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    assert read_any_records(write(tmp_path, eagle_lines(1), name)).records[0].dataset == dataset


def test_a_temperature_is_found_in_a_name() -> None:
    assert temperature_in("vicuna-temperature-0.0", "") == 0.0
    assert temperature_in("vicuna", "vicuna-swift-float16-temp-0.6-top-p-0.95") == 0.6
    assert temperature_in("vicuna-template-5") is None


def test_a_temperature_nobody_names_is_noted(tmp_path: Path) -> None:
    found = read_any_records(write(tmp_path, swift_lines(1), "a.jsonl"))
    assert "0 is assumed" in found.notes[0]


def test_tokens_nobody_counted_are_noted_and_not_compared_until_they_are(tmp_path: Path) -> None:
    found = read_any_records(write(tmp_path, [changed(line, new_tokens=None) for line in eagle_lines()]))
    assert "new_tokens is absent" in found.notes[0]
    ours = read_any_records(write(tmp_path, eagle_lines(), "b.jsonl")).records
    with pytest.raises(ConfigError, match="does not say how many tokens"):
        speed_comparison(ours, found.records)
    speed_comparison(ours, found.records, count_tokens=len)


def test_a_torn_last_line_and_questions_answered_twice_are_noted(tmp_path: Path) -> None:
    lines = eagle_lines(2)
    found = read_any_records(write(tmp_path, [*lines, lines[0]]))
    assert len(found.records) == 3
    assert "1 questions were answered more than once" in found.notes[0]
    path = tmp_path / "torn.jsonl"
    path.write_bytes(as_bytes(lines)[:-30])
    assert read_any_records(path).notes == ("the last line is cut short and was left out",)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "holds no record"),
        (["{}"], ":1 is no record"),
        (['{"choices": []}'], ":1: choices is"),
        ([eagle_lines(1)[0], spec_bench_lines(1)[0]], ":2 looks like a line of spec_bench"),
        ([our_lines(1)[0], eagle_lines(1)[0]], ":2 looks like a line of eagle"),
        ([changed(eagle_lines(1)[0], wall_time=None)], r":1: choices\[0\]\.wall_time is missing"),
        ([changed(eagle_lines(1)[0], wall_time=[1.0])], "as many as there are turns"),
        ([changed(eagle_lines(1)[0], new_tokens=[1, -2])], r"new_tokens\[1\] is -2"),
        ([changed(eagle_lines(1)[0], idxs=[1, 2, 3])], "idxs"),
    ],
)
def test_a_line_that_is_nobodys_is_named(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"a-model.*\.jsonl.*{complaint}"):
        read_any_records(write(tmp_path, lines))


def by_hand(lines: list[str], baseline: list[str], keep: Any = lambda values: True) -> Speeds:
    """The published definition, from the files themselves, in numpy."""
    sides = [
        [values for line in side if "choices" in (values := json.loads(line)) and keep(values)]
        for side in (lines, baseline)
    ]
    choices = [[values["choices"][0] for values in side] for side in sides]
    rates = [[np.sum(choice["new_tokens"]) / np.sum(choice["wall_time"]) for choice in side] for side in choices]
    lengths = np.concatenate([np.array(choice.get("accept_lengths", [])) for choice in choices[0]])
    return Speeds(
        tokens_per_s=float(np.mean(rates[0])),
        baseline_tokens_per_s=float(np.mean(rates[1])),
        speedup=float(np.mean(rates[0]) / np.mean(rates[1])),
        mean_accepted=float(np.mean(lengths)) if len(lengths) else None,
        num_answers=len(rates[0]),
        num_baseline_answers=len(rates[1]),
    )


def assert_same(found: Speeds, expected: Speeds) -> None:
    for name, value in asdict(expected).items():
        assert getattr(found, name) == (value if value is None else pytest.approx(value, rel=1e-12, abs=0)), name


@pytest.mark.parametrize("kind", ["eagle", "spec_bench", "swift"])
@pytest.mark.parametrize("num_answers", [1, 2, 7, 40])
def test_speeds_are_those_of_the_published_scripts(tmp_path: Path, kind: str, num_answers: int) -> None:
    lines, baseline = KINDS[kind](num_answers, seed=1), KINDS[kind](num_answers + 3, seed=2)  # type: ignore[operator]
    ours, others = (read_any_records(write(tmp_path, side)).records for side in (lines, baseline))
    found = speed_comparison(ours, others)
    assert_same(found.overall, by_hand(lines, baseline))
    assert len(found.samples) == num_answers
    for number, sample in enumerate(found.samples, start=1):
        running = by_hand(lines[:number], baseline[:number])
        assert sample.running_speedup == pytest.approx(running.speedup, rel=1e-12)
        assert sample.speedup == pytest.approx(by_hand([lines[number - 1]], [baseline[number - 1]]).speedup, rel=1e-12)


def test_our_own_files_are_compared_as_the_scripts_would(tmp_path: Path) -> None:
    lines, baseline = our_lines(6), our_lines(8, num_turns=1)
    ours, others = (read_any_records(write(tmp_path, side)).records for side in (lines, baseline))
    assert_same(speed_comparison(ours, others).overall, by_hand(lines, baseline))


def test_tasks_are_those_of_spec_bench(tmp_path: Path) -> None:
    lines, baseline = spec_bench_lines(11, seed=1), spec_bench_lines(9, seed=2)
    ours, others = (read_any_records(write(tmp_path, side)).records for side in (lines, baseline))
    found = speed_comparison(ours, others).tasks
    assert set(found) == {"mt_bench", "translation", "qa"}
    assert_same(found["mt_bench"], by_hand(lines, baseline, lambda values: values["category"] in ("writing", "math")))
    assert_same(found["qa"], by_hand(lines, baseline, lambda values: values["category"] == "qa"))


def test_a_tokenizer_counts_the_baseline_again_as_eagle_does(tmp_path: Path) -> None:
    lines, baseline = eagle_lines(3, seed=1), eagle_lines(3, seed=2)
    ours, others = (read_any_records(write(tmp_path, side)).records for side in (lines, baseline))
    recounted = [changed(line, new_tokens=[len("Dear friend,") - 1, len("Sure!") - 1]) for line in baseline]
    found = speed_comparison(ours, others, count_tokens=lambda text: len(text) - 1)
    assert_same(found.overall, by_hand(lines, recounted))


def answer(question_id: int, *, rate: float, repeat: int = 0, wall_s: float = 2.0) -> Record:
    turn = Turn(text="", num_new_tokens=int(rate * wall_s), wall_s=wall_s)
    return record(question_id, turns=(turn,), repeat=repeat)


def test_questions_are_paired_by_id_and_the_rest_is_left_out_of_the_samples() -> None:
    ours = [answer(3, rate=30), answer(1, rate=10), answer(9, rate=90)]
    baseline = [answer(1, rate=5), answer(2, rate=7), answer(3, rate=10)]
    samples = speed_comparison(ours, baseline).samples
    assert [(sample.question_id, sample.speedup) for sample in samples] == [(3, 3.0), (1, 2.0)]
    assert samples[-1].running_speedup == pytest.approx(20 / 7.5)


def test_repeats_give_mean_and_sample_deviation() -> None:
    ours = [answer(1, rate=rate, repeat=repeat) for repeat, rate in enumerate((10, 20, 60, 99))]
    baseline = [answer(1, rate=10, repeat=repeat) for repeat in range(3)]
    found = speedup_over_repeats(ours, baseline)
    assert (found.mean, found.num_values) == (3.0, 3)
    assert found.deviation == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert speedup_over_repeats(ours[:1], baseline).deviation is None
    with pytest.raises(ConfigError, match="no repeat in common"):
        speedup_over_repeats(ours[3:], baseline)


@pytest.mark.parametrize(
    ("ours", "baseline", "complaint"),
    [
        ([], [], "0 answers of repeat 0 to compare with 0"),
        ([answer(1, rate=1)], [], "1 answers of repeat 0 to compare with 0"),
        ([answer(1, rate=1, repeat=1)], [answer(1, rate=1)], "0 answers"),
        ([answer(1, rate=1, wall_s=0.0)], [answer(1, rate=1)], "in 0.0 seconds"),
        ([answer(1, rate=1)], [answer(1, rate=0)], "give no speed-up"),
    ],
)
def test_what_cannot_be_compared_is_said(ours: list[Record], baseline: list[Record], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        speed_comparison(ours, baseline)


def test_rounds_nobody_counted_give_no_mean() -> None:
    assert speed_comparison([answer(1, rate=1)], [answer(1, rate=1)]).overall.mean_accepted is None
