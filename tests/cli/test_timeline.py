"""The picture and the trace of a generation, from spans made by hand and from a real one."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.cli.timeline import check_timeline_path, draw_svg, shares, trace_json, write_timeline
from forerun.core.errors import ConfigError
from forerun.core.steps import DecodeStep, Span, StepStats
from forerun.engine.stream import GenerationStream
from tests.cli.conftest import Run

SVG = "{http://www.w3.org/2000/svg}"
LANES = ("target", "draft", "wait")
CLOCK_S = 5000.0  # perf_counter starts anywhere
SAMPLED = ("--prompt", "Once upon", "--max-new-tokens", "24", "--temperature", "0.7", "--seed", "1", "--ignore-eos")


def span(lane: str, start_ms: float, end_ms: float, label: str = "") -> Span:
    return Span(lane, CLOCK_S + 1e-3 * start_ms, CLOCK_S + 1e-3 * end_ms, label)


def rounds(number: int) -> list[Span]:
    """Passes of 9 ms every 10 ms, each with an expansion of 2 ms under it."""
    return [
        part
        for start in range(0, 10 * number, 10)
        for part in (span("target", start, start + 9, "2 of 7"), span("draft", start + 1, start + 3))
    ]


def round_of(*spans: Span, num_accepted: int = 0) -> StepStats:
    return StepStats(
        num_drafted=3, num_verified=4, num_accepted=num_accepted, num_near_ties=0, draft_s=0.002, verify_s=0.003,
        wait_s=0.001, was_hit=False, spans=spans,
    )  # fmt: skip


def elements(svg: str, name: str, kind: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(SVG + name)
    return [element for element in found if kind in element.get("class", "").split()]


def texts(svg: str) -> str:
    return "\n".join("".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(SVG + "text"))


def test_shares_are_parts_of_the_time_from_the_first_start_to_the_last_end() -> None:
    found = shares([span("target", 0, 40), span("wait", 40, 50), span("draft", 30, 50), span("target", 50, 100)])
    assert found.target_busy == pytest.approx(0.9)
    assert found.waiting == pytest.approx(0.1)
    assert found.draft_busy == pytest.approx(0.2)
    assert found.overlap == pytest.approx(0.5)


def test_a_short_run_is_shown_whole_with_a_box_for_every_span() -> None:
    spans = [*rounds(4), span("wait", 39, 40)]
    svg = draw_svg(spans, title="run")
    assert len(elements(svg, "rect", "span")) == len(spans)
    numbers = [sum(lane in box.get("class", "") for box in elements(svg, "rect", "span")) for lane in LANES]
    assert numbers == [4, 4, 1]
    assert "0 to 40 of 40 ms" in texts(svg)
    assert all(share in texts(svg) for share in ("90.0% target busy", "2.5% waiting", "20.0% draft busy", "100.0% of"))


@pytest.mark.parametrize("title", ["a < b & \"c\" 'd' ]]>", "</title><script/>", "bell \x07 half \ud800", "long " * 99])
def test_any_title_gives_a_well_formed_picture(title: str, tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    write_timeline(path, [round_of(span("target", 0, 1, title))], title=title)
    root = ElementTree.parse(path).getroot()
    expected = title.replace("\x07", "\ufffd").replace("\ud800", "\ufffd")
    assert root.findtext(SVG + "title") == expected
    (shown,) = elements(path.read_text(encoding="utf-8"), "text", "title")
    assert shown.text is not None
    assert expected.startswith(shown.text.removesuffix("…"))
    assert len(shown.text) < 100


def test_the_trace_has_microseconds_from_the_first_span_on_and_two_named_rows() -> None:
    first = round_of(span("draft", 3, 5.5), span("target", 1, 4, "2 of 7"))
    trace = json.loads(trace_json([first, round_of(span("wait", 4, 5, "miss"), num_accepted=2)]))
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    found = [(event["cat"], event["name"], named[event["tid"]], event["ts"], event["dur"]) for event in events]
    assert found == [
        ("target", "2 of 7", "target", 0, 3000),
        ("draft", "draft", "draft", 2000, 2500),
        ("wait", "miss", "target", 3000, 1000),
    ]
    assert [event["args"] for event in events] == [first.numbers(), {}, {}], "each round's numbers are told once"


def test_the_suffix_chooses_the_format_and_the_file_is_replaced_whole(tmp_path: Path) -> None:
    for name in ("run.svg", "run.JSON"):
        (tmp_path / name).write_text("before")
        write_timeline(tmp_path / name, [round_of(*rounds(2))], title="run")
    assert ElementTree.parse(tmp_path / "run.svg").getroot().tag == SVG + "svg"
    assert "traceEvents" in json.loads((tmp_path / "run.JSON").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"run.svg", "run.JSON"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.png", r"ends in '\.png'.*\.svg.*\.json"),
        ("run", "ends in 'no suffix'"),
        ("nowhere/run.svg", "there is no folder .*nowhere"),
        ("folder.svg", "it is a folder"),
    ],
)
def test_a_path_that_cannot_be_drawn_to_is_refused_before_any_work(
    tmp_path: Path, run: Run, name: str, message: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(ConfigError, match=message):
        check_timeline_path(tmp_path / name)
    shown = run("generate", "no/such/model", "-p", "x", "--timeline", str(tmp_path / name))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert str(tmp_path / name) in shown.stderr


@pytest.mark.parametrize("flags", [(), ("--no-stream",), ("--show-tree",), ("--json",)])
def test_a_generation_draws_itself_and_says_what_it_says_without(
    run: Run, target: str, draft: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "run.svg"
    plain = run("generate", target, "--draft", draft, *flags, *SAMPLED)
    shown = run("generate", target, "--draft", draft, *flags, *SAMPLED, "--timeline", str(path))
    assert shown.exit_code == 0, shown.output
    if "--json" in flags:
        assert json.loads(shown.stdout) | {"stats": 0} == json.loads(plain.stdout) | {"stats": 0}
        assert shown.stderr == ""
    else:
        assert shown.stdout == plain.stdout
    svg = path.read_text(encoding="utf-8")
    assert 1 <= sum("target" in box.get("class", "") for box in elements(svg, "rect", "span")) <= 24
    assert Path(target).name in texts(svg)


def test_a_generation_without_times_says_that_there_is_no_picture(
    run: Run, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = GenerationStream.__next__

    def without_spans(stream: GenerationStream) -> DecodeStep:
        step = advance(stream)
        return replace(step, stats=replace(step.stats, spans=()))

    monkeypatch.setattr(GenerationStream, "__next__", without_spans)
    path = tmp_path / "run.svg"
    shown = run("generate", target, *SAMPLED, "--timeline", str(path))
    assert shown.exit_code == 0, shown.output
    assert f"no timeline was written to {path}" in shown.stderr
    assert not path.exists()
