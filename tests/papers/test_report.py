"""The report of a paper: every figure with its kind, scaled, and the paper's own beside it."""

import json
from collections.abc import Sequence
from csv import DictReader
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.core.drafter_config import DraftModel, NoDrafter, Parallel
from forerun.core.pace import Pace
from forerun_lab.papers.experiments import Contest, Line, Published, Variant
from tests.bench.report.test_page import check
from tests.bench.sample_run import write_sample_run

report = pytest.importorskip("forerun_lab.papers.report", reason="needs matplotlib", exc_type=ImportError)

FIXED = DraftModel(adaptive=False, verify_width=8)
SLOW = Pace(steps=((8, 0.02),))
FAST = Pace(steps=((8, 0.001),))
SPLIT = Line(
    experiment="splits", contestant="parallel 4+4", words="8 rows", dataset="", source="projected", tokens_per_s=300.0,
    published_tokens_per_s=347.0,
)  # fmt: skip


def contest_of(pace: Pace | None) -> Contest:
    published = Published(tokens_per_s=347.0, tokens_per_round={"qa": 2.74, "": 3.34}, note="a <b>note</b>")
    return Contest(
        name="table",
        title="A table",
        source="paced",
        stretch=2.0,
        contestants=(
            Variant(label="none", words="plain decoding", drafter=NoDrafter()),
            Variant(
                label="parallel", words="in parallel", drafter=Parallel(draft=FIXED), published=published, pace=pace
            ),
        ),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample_run(
        tmp_path / "table", datasets=("qa", "alpaca"), contestants=("none", "parallel"), temperatures=(0.0,),
        num_prompts=5, repeats=1, num_tokens=48,
    )  # fmt: skip
    return tmp_path


def lines_of(lines: Sequence[Line], contestant: str, dataset: str = "") -> Line:
    (line,) = [line for line in lines if (line.contestant, line.dataset) == (contestant, dataset)]
    return line


def test_speeds_are_scaled_by_the_stretch_and_ratios_are_not(folder: Path) -> None:
    doubled = report.section_of(folder, contest_of(SLOW))
    single = report.section_of(folder, replace(contest_of(SLOW), stretch=1.0))
    ours = lines_of(doubled.lines, "parallel")
    as_is = lines_of(single.lines, "parallel")
    assert ours.tokens_per_s == pytest.approx(2 * as_is.tokens_per_s)
    assert ours.ratio == as_is.ratio
    assert any("2 times as long" in text for text in doubled.texts)
    assert not any("times as long" in text for text in single.texts)


def test_passes_that_last_longer_than_their_pace_are_told(folder: Path) -> None:
    assert any("too slow or too busy" in text for text in report.section_of(folder, contest_of(FAST)).texts)
    assert not any("too slow" in text for text in report.section_of(folder, contest_of(SLOW)).texts)


def test_published_figures_stand_beside_ours(folder: Path) -> None:
    section = report.section_of(folder, contest_of(SLOW))
    cells = report.cells(lines_of(section.lines, "parallel"))
    assert cells[5:] == ["paced", "347 tokens/s; length 3.34; a <b>note</b>"]
    by_set = section.tables[report.BY_SET]
    assert by_set[-1] == ["parallel, the paper's length", "2.74", "\N{EN DASH}"]
    idle = replace(lines_of(section.lines, "parallel"), is_idle=True)
    assert report.cells(idle)[3] == "drafted nothing"


def test_a_report_is_whole_in_every_form(folder: Path) -> None:
    point = {"request": 0, "steps": 1, "matchness": 0.5, "search_s": 0.1, "is_searching": True}
    search = {words: {"points": points, "skipped": 4, "of": 8} for words, points in (("a", [point]), ("b", []))}
    (folder / "search.json").write_text(json.dumps(search))
    found = [
        report.section_of(folder, contest_of(None)), report.splits_section([SPLIT], "Splits", ["told"]),
        report.search_section(folder),
    ]  # fmt: skip
    written = report.write(folder, "A paper", "about", found, ["a note"])
    assert all(path.exists() for path in written)
    html = (folder / "report.html").read_text()
    check(html)
    assert "<b>note" not in html
    for source in ("paced", "projected"):
        assert f'<span class="source {source}">' in html
    lines = list(DictReader(StringIO((folder / "report.csv").read_text())))
    assert {line["source"] for line in lines} == {"paced", "projected"}
    assert len(lines) == 7
    text = (folder / "report.md").read_text()
    assert "1 candidates scored, best matchness 0.50, 4 of 8 sublayers skipped" in text
    assert "no candidate was scored" in text
    pictures = sorted((folder / "pictures").iterdir())
    assert [path.name for path in pictures] == [
        "search-matchness.svg", "splits-speeds.svg", "table-speeds.svg", "table-time-of-a-round.svg",
        "table-tokens-per-round.svg",
    ]  # fmt: skip
    for path in pictures:
        ElementTree.fromstring(path.read_text())


def test_an_experiment_that_was_not_played_has_no_section(tmp_path: Path) -> None:
    assert report.section_of(tmp_path, contest_of(None)) is None
    assert report.search_section(tmp_path) is None
