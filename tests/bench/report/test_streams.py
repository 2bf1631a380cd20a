"""The phases of a search, and the speed by the number of the request."""

from dataclasses import replace

import pytest

from forerun.core.steps import SkipReport
from forerun_lab.bench.records.answers import Record, Turn
from forerun_lab.bench.records.run_folder import RecordedRun
from forerun_lab.bench.report import markdown
from forerun_lab.bench.report.streams import changes_of_task, phase_cells
from forerun_lab.bench.report.summary import Summary, summarise_run

SETS = ("news", "news", "sums", "sums")
# Whether the search goes on at the end of each request, and its seconds so far.
REPORTS = ((True, 2.0), (False, 5.0), (False, 5.0), (False, 5.0))


def answer(number: int, contestant: str, seconds: float, skips: SkipReport | None = None) -> Record:
    """Of 11 tokens, the first after a second."""
    turn = Turn(
        text="x",
        num_new_tokens=11,
        wall_s=1.0 + seconds,
        emitted=(1, 10),
        emitted_at_s=(1.0, 1.0 + seconds),
        skips=skips,
    )
    return Record(
        question_id=number, category="", contestant=contestant, dataset=SETS[number], temperature=0.0, turns=(turn,),
        started_at=float(number),
    )  # fmt: skip


def report_of(is_searching: bool, search_s: float) -> SkipReport:
    return SkipReport(
        is_searching=is_searching, attention=(1,), mlp=(2,), matchness=0.75, hit_rate=0.5, num_scored=9,
        search_s=search_s,
    )  # fmt: skip


@pytest.fixture
def summary() -> Summary:
    """Plain decoding writes 10 tokens/s; self-drafting 5 while it searches, then 20."""
    seconds = (2.0, 2.0, 0.5, 0.5)
    records = [answer(number, "none", 1.0) for number in range(4)]
    records += [
        answer(number, "layer_skip_paper", seconds[number], report_of(*REPORTS[number]))
        for number in reversed(range(4))
    ]
    return summarise_run(RecordedRun(records=tuple(records)), baseline="none")


def test_a_request_belongs_to_the_search_that_went_on_when_it_began(summary: Summary) -> None:
    (stream,) = summary.streams
    phases = [request.phase for request in stream.requests]
    assert phases == ["optimisation", "optimisation", "acceleration", "acceleration"]
    assert [request.search_s for request in stream.requests] == [2.0, 3.0, 0.0, 0.0]
    assert phase_cells(stream) == [
        ("optimisation", "2", "22", "5.0", "0.50", "5.0", "75 %"),
        ("acceleration", "2", "22", "20.0", "2.00", "0.0", "75 %"),
    ]
    assert "| optimisation | 2 | 22 | 5.0 | 0.50 | 5.0 | 75 % |" in markdown.write(summary)


def test_a_search_that_begins_again_and_an_engine_that_does_are_seen(summary: Summary) -> None:
    again = [replace(report_of(True, 6.0)), report_of(False, 1.0)]  # the second one of a new engine
    records = [answer(number, "layer_skip", 1.0, report_of(*REPORTS[2 * number + 1])) for number in range(2)]
    records += [answer(2 + number, "layer_skip", 1.0, skips) for number, skips in enumerate(again)]
    (stream,) = summarise_run(RecordedRun(records=tuple(records)), baseline=None).streams
    phases = [request.phase for request in stream.requests]
    assert phases == ["optimisation", "acceleration", "optimisation", "optimisation"]
    assert [request.search_s for request in stream.requests] == [5.0, 0.0, 1.0, 1.0]
    assert phase_cells(stream)[0][4] == "", "there is no baseline"


def test_tasks_after_each_other_are_named_where_they_begin(summary: Summary) -> None:
    (stream,) = summary.streams
    assert changes_of_task(stream) == [(1, "news"), (3, "sums")]
    first, second, third, last = stream.requests
    assert changes_of_task(replace(stream, requests=(first, third, second, last))) == [], "alternating sets"


def test_the_page_has_the_plot_and_the_table(summary: Summary) -> None:
    page = pytest.importorskip("forerun_lab.bench.report.page", reason="needs matplotlib", exc_type=ImportError)
    whole = page.write(summary)
    assert "Searching and after it" in whole
    assert "number of the request" in whole


def test_a_contestant_that_does_not_search_has_no_stream() -> None:
    fixed = replace(report_of(False, 0.0), num_scored=0)
    records = [answer(number, "layer_skip", 1.0, fixed) for number in range(2)]
    assert summarise_run(RecordedRun(records=tuple(records)), baseline=None).streams == ()
