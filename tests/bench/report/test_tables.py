"""What the terminal and Markdown show."""

from csv import DictReader
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from forerun_lab.bench.records.run_folder import RecordedRun
from forerun_lab.bench.report import files, markdown
from forerun_lab.bench.report.bootstrap import Estimate
from forerun_lab.bench.report.compare import RunSpeeds, compare
from forerun_lab.bench.report.summary import Summary, summarise_run
from forerun_lab.bench.report.table import draw, draw_comparison
from forerun_lab.bench.report.wording import fastest, headline, verdict_on_texts
from tests.bench.sample_run import CONTESTANTS, DATASETS, about, sample_records


@pytest.fixture(scope="module")
def summary() -> Summary:
    records = sample_records(num_prompts=5, repeats=1, num_tokens=24)
    return summarise_run(RecordedRun(records=tuple(records), about=about(records)), baseline="none")


def shown(drawing: RenderableType, *, width: int = 100, is_terminal: bool = False) -> str:
    out = StringIO()
    Console(file=out, width=width, force_terminal=is_terminal, color_system="standard" if is_terminal else None).print(
        drawing
    )
    return out.getvalue()


def test_the_table_fits_a_hundred_columns_and_names_everyone(summary: Summary) -> None:
    text = shown(draw(summary))
    assert max(map(len, text.splitlines())) <= 100
    assert all(name in text for name in CONTESTANTS)
    assert all(dataset.split("_")[0] in text for dataset in DATASETS)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text  # nothing is cut off
    assert "left out: vllm: vLLM is not installed here" in text


def test_the_headline_is_about_a_drafter_of_ours_at_the_lowest_temperature(summary: Summary) -> None:
    found = headline(summary)
    assert found.row is not None
    assert (found.row.contestant, found.row.temperature, found.row.dataset) == ("parallel", 0.0, None)
    assert found.text.startswith("parallel writes ")
    assert "95 % interval" in found.detail
    assert "30 prompts of 6 data sets" in found.detail


def test_a_faster_peer_does_not_take_the_headline(summary: Summary) -> None:
    fast = [
        replace(row, speed=replace(row.speed, value=1e4)) if row.contestant == "llama.cpp" and row.speed else row
        for row in summary.rows
    ]
    found = headline(replace(summary, rows=tuple(fast)))
    assert found.row is not None
    assert found.row.contestant == "parallel"


def changed(summary: Summary, **changes: object) -> Summary:
    """The summary with these changes in every row but those of drafter none."""
    rows = [replace(row, **changes) if row.ratio else row for row in summary.rows]  # type: ignore[arg-type]
    return replace(summary, rows=tuple(rows))


@pytest.mark.parametrize(
    ("interval", "is_idle", "said"),
    [
        ((1.02, 1.14), False, "writes 1.08\N{MULTIPLICATION SIGN} as fast as plain decoding"),
        ((0.98, 1.18), False, "Nothing is faster than plain decoding beyond noise"),
        ((None, None), False, "Too few prompts to say what is faster than plain decoding: at least 5 are needed"),
        ((1.02, 1.14), True, "No drafted token was accepted, so nothing is faster than plain decoding"),
    ],
)
def test_a_gain_is_named_only_beyond_noise_and_with_accepted_drafts(
    summary: Summary, interval: tuple[float | None, float | None], is_idle: bool, said: str
) -> None:
    ratio = Estimate(value=1.08, low=interval[0], high=interval[1], num_prompts=30)
    ours = replace(summary, rows=tuple(row for row in summary.rows if summary.kind_of(row.contestant) != "peer"))
    found = headline(changed(ours, ratio=ratio, is_idle=is_idle))
    assert said in found.text
    assert "1.08" in found.text + found.detail


def test_the_fastest_row_is_not_one_that_drafted_nothing(summary: Summary) -> None:
    best = fastest(changed(summary, is_idle=True).over_all(0.0))
    assert best is not None
    assert best.contestant == "none"


def test_texts_that_differ_without_a_near_tie_are_called_an_error(summary: Summary) -> None:
    assert "error" not in verdict_on_texts(summary)
    wrong = [
        replace(row, exactness=replace(row.exactness, num_different=2)) if row.exactness else row
        for row in summary.rows
    ]
    assert "that is an error" in verdict_on_texts(replace(summary, rows=tuple(wrong)))


def test_brackets_in_names_are_no_markup() -> None:
    records = sample_records(datasets=("[bold]", "[/b]"), contestants=("[/red]",), temperatures=(0.0,), num_prompts=1)
    summary = summarise_run(RecordedRun(records=tuple(records)), baseline=None)
    text = shown(draw(summary))
    assert text.count("[/red]") == 3  # in the headline and both tables
    assert "[bold]" in text


def test_markdown_shows_names_as_they_are() -> None:
    records = sample_records(
        datasets=("a|b",), contestants=("<script>alert(1)</script>",), temperatures=(0.0,), num_prompts=1
    )
    text = markdown.write(summarise_run(RecordedRun(records=tuple(records)), baseline=None))
    assert "<script" not in text.replace("\\<script", "")
    assert "\\<script\\>" in text


def test_csv_has_a_line_for_each_row_and_a_column_for_each_number(summary: Summary) -> None:
    lines = list(DictReader(StringIO(files.table(summary))))
    assert len(lines) == len(summary.rows)
    row = next(row for row in summary.rows if row.contestant == "parallel" and row.dataset == "qa")
    line = next(line for line in lines if line["contestant"] == "parallel" and line["dataset"] == "qa")
    assert row.ratio is not None
    assert float(line["ratio.low"]) == row.ratio.low
    assert float(line["drafting.tokens_per_round"]) == row.drafting.tokens_per_round
    none = next(line for line in lines if line["contestant"] == "none")
    assert none["ratio.value"] == ""
    assert not [name for name in line if name is None or name in ("ratio", "speed", "prompts")]


def test_a_comparison_names_the_rows_that_are_slower(summary: Summary) -> None:
    slower = [
        replace(row, prompts=tuple(replace(each, tokens_per_s=each.tokens_per_s / 2) for each in row.prompts))
        if row.contestant == "parallel"
        else row
        for row in summary.rows
    ]
    lines = shown(
        draw_comparison(compare(RunSpeeds.of(summary), RunSpeeds.of(replace(summary, rows=tuple(slower)))))
    ).splitlines()
    found = [line for line in lines if line.rstrip().endswith("slower")]
    assert len(found) == 2 * (len(DATASETS) + 1)
    assert all("parallel" in line and "0.50" in line for line in found)
