"""The page: whole, closed to the network, and safe whatever names and texts say."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from forerun_lab.bench.records.answers import Record
from forerun_lab.bench.records.run_folder import RecordedRun
from forerun_lab.bench.report import files
from forerun_lab.bench.report.summary import summarise_run
from forerun_lab.bench.report.wording import circumstances
from tests.bench.sample_run import about, sample_records

plots = pytest.importorskip("forerun_lab.bench.report.plots", reason="needs matplotlib", exc_type=ImportError)
page = pytest.importorskip("forerun_lab.bench.report.page", reason="needs matplotlib", exc_type=ImportError)

EVIL = "<script>alert('x')</script>\"&$\\oops$ \N{CJK UNIFIED IDEOGRAPH-4E2D}"
VOID = {"meta", "br", "hr", "img", "input", "link"}
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Checker(HTMLParser):
    """Collects tags, ids and attributes, and notes tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href", "action") or name.startswith("on"):
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert (checker.faults, checker.open) == ([], [])
    return checker


def write(records: list[Record], *, baseline: str | None = "none") -> str:
    run = RecordedRun(records=tuple(records), about=about(records))
    return str(page.write(summarise_run(run, baseline=baseline)))


@pytest.fixture(scope="module")
def whole() -> str:
    return write(sample_records(datasets=("qa", "gsm8k"), num_prompts=5, repeats=1, num_tokens=24))


def test_the_page_is_whole_and_fetches_nothing(whole: str) -> None:
    found = check(whole)
    assert all(link.startswith("#") for link in found.links)
    assert "script" not in found.tags
    assert set(re.findall(r"https?://[^\s\"'<)]+", whole)) <= NAMESPACES
    assert "@import" not in whole


def test_every_id_is_there_once_and_every_reference_leads_somewhere(whole: str) -> None:
    ids = check(whole).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", whole)) <= set(ids)


def test_every_picture_is_well_formed_and_has_a_name(whole: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", whole, re.DOTALL)
    assert len(pictures) == 7
    for picture in pictures:
        assert ElementTree.fromstring(picture).get("aria-label")


def test_picture_files_stand_alone_with_title_and_legend() -> None:
    records = sample_records(datasets=("qa",), contestants=("none", "parallel", EVIL), num_prompts=5, num_tokens=24)
    summary = summarise_run(RecordedRun(records=tuple(records), about=about(records)), baseline="none")
    found = files.pictures(summary)
    assert set(found) == {
        *(f"{plot}-temperature-{at}.svg" for plot in ("speeds", "tokens-per-round") for at in (0, 1)),
        *(f"{plot}.svg" for plot in ("time-of-a-round", "time-per-token", "accepted", "acceptance-by-depth")),
    }
    for name, picture in found.items():
        texts = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]
        assert "var(" not in picture
        assert "c0ff" not in picture
        assert "inherit" not in picture
        assert (EVIL in texts) or name == "time-of-a-round.svg"


def test_times_of_tokens_are_written_out_on_their_axis() -> None:
    assert [plots._minor(value, None) for value in (0.2, 0.5, 20.0, 300.0, 5000.0)] == ["0.2", "0.5", "20", "", "5000"]


def test_circumstances_are_in_words() -> None:
    told = {"num_prompts": 8, "machine": {"foreign_load": 0.5048, "torch": "2.13"}}
    summary = summarise_run(RecordedRun(records=(), about={}), baseline="none")
    facts = dict(circumstances(replace(summary, about=told)))
    assert (facts["prompts"], facts["foreign load"]) == ("8 per data set, each asked once", "50 % of a core")
    facts = dict(circumstances(replace(summary, about={**told, "repeats": 3})))
    assert facts["prompts"] == "8 per data set, each asked 3 times"


@pytest.mark.parametrize("baseline", ["none", EVIL])
def test_names_are_shown_and_never_run(baseline: str) -> None:
    records = [
        replace(record, question_id=EVIL)
        for record in sample_records(
            datasets=(EVIL,), contestants=("none", EVIL), temperatures=(0.0,), num_prompts=1, num_tokens=24
        )
    ]
    text = write(records, baseline=baseline)
    found = check(text)
    assert "script" not in found.tags
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10


def test_a_page_of_no_answers_says_so() -> None:
    text = str(page.write(summarise_run(RecordedRun(records=()), baseline=None)))
    check(text)
    assert "No answers yet" in text
    assert "<svg" not in text
