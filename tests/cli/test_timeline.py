"""The picture and the trace of a generation, from spans made by hand and from a real one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.cli.timeline import check_timeline_path, draw_svg, shares, trace_json, write_timeline
from forerun.core.drafter_config import paper_layer_skip
from forerun.core.errors import ConfigError
from forerun.core.steps import DecodeStep
from forerun.core.timing import Span
from forerun.drafting.policies import Policies
from forerun.drafting.remote.policy import RemotePolicy
from forerun.engine import engine
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


def test_time_in_which_a_side_did_two_things_counts_once() -> None:
    found = shares([span("draft", 2, 6), span("target", 0, 8), span("draft", 0, 4), span("draft", 3, 5)])
    assert found.draft_busy == pytest.approx(0.75)
    assert found.overlap == pytest.approx(1.0)


def test_work_by_turns_does_not_overlap_and_without_drafting_there_is_nothing_to_overlap() -> None:
    assert shares([span("target", 0, 5), span("draft", 5, 7), span("target", 7, 9)]).overlap == pytest.approx(
        0, abs=1e-9
    )
    alone = [span("target", 0, 5)]
    assert shares(alone).overlap is None
    assert "under target time" not in texts(draw_svg(alone, title="plain"))


def test_a_short_run_is_shown_whole_with_a_box_for_every_span() -> None:
    spans = [*rounds(4), span("wait", 39, 40)]
    svg = draw_svg(spans, title="run")
    assert len(elements(svg, "rect", "span")) == len(spans)
    numbers = [sum(lane in box.get("class", "") for box in elements(svg, "rect", "span")) for lane in LANES]
    assert numbers == [4, 4, 1]
    assert "0 to 40 of 40 ms" in texts(svg)
    assert all(share in texts(svg) for share in ("90.0% target busy", "2.5% waiting", "20.0% draft busy", "100.0% of"))


def test_of_a_long_run_twelve_rounds_from_the_middle_are_shown_and_the_shares_are_of_all() -> None:
    spans = [*rounds(100), span("draft", 1000, 2000)]
    svg = draw_svg(spans, title="run")
    assert len(elements(svg, "rect", "span")) == 24
    assert "440 to 560 of 2000 ms" in texts(svg)
    assert "60.0% draft busy" in texts(svg)


def test_a_window_starts_with_a_pass_and_cuts_what_reaches_out_of_it() -> None:
    svg = draw_svg([*rounds(100), span("draft", 435, 445)], title="run")
    boxes = elements(svg, "rect", "span")
    assert len(boxes) == 25
    edges = [(float(box.get("x", "")), float(box.get("width", ""))) for box in boxes]
    (track, _) = elements(svg, "rect", "track")
    begin, width = float(track.get("x", "")), float(track.get("width", ""))
    assert min(x for x, _ in edges) == begin
    assert max(x + box for x, box in edges) <= begin + width


def test_a_label_is_written_where_it_fits_and_can_always_be_pointed_at() -> None:
    svg = draw_svg([span("target", 0, 100, "2 of 7"), span("draft", 1, 2, "miss")], title="run")
    assert [element.text for element in elements(svg, "text", "label")] == ["2 of 7"]
    hints = [box.findtext(SVG + "title") for box in elements(svg, "rect", "span")]
    assert hints == ["target, 100.00 ms: 2 of 7", "draft, 1.00 ms: miss"]


@pytest.mark.parametrize(("length_ms", "last"), [(0.09, "0.09"), (9.0, "9"), (95.0, "90"), (1300.0, "1300")])
def test_the_axis_counts_milliseconds_from_0_at_round_numbers(length_ms: float, last: str) -> None:
    ticks = [element.text for element in elements(draw_svg([span("target", 0, length_ms)], title=""), "text", "middle")]
    assert ticks[0] == "0 ms"
    assert ticks[-1] == last
    assert 4 <= len(ticks) <= 15


@pytest.mark.parametrize("spans", [[span("target", 0, 0)], [span("draft", 3, 4)], [span("wait", 0, 1)]])
def test_odd_runs_have_a_picture(spans: Sequence[Span]) -> None:
    assert len(elements(draw_svg(spans, title="odd"), "rect", "span")) >= (spans[0].lane != "target")


@pytest.mark.parametrize("title", ["a < b & \"c\" 'd' ]]>", "</title><script/>", "bell \x07 half \ud800", "long " * 99])
def test_any_title_gives_a_well_formed_picture(title: str, tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    write_timeline(path, [span("target", 0, 1, title)], title=title)
    root = ElementTree.parse(path).getroot()
    expected = title.replace("\x07", "\ufffd").replace("\ud800", "\ufffd")
    assert root.findtext(SVG + "title") == expected
    (shown,) = elements(path.read_text(encoding="utf-8"), "text", "title")
    assert shown.text is not None
    assert expected.startswith(shown.text.removesuffix("…"))
    assert len(shown.text) < 100


def test_the_trace_has_microseconds_from_the_first_span_on_and_two_named_rows() -> None:
    spans = [span("draft", 3, 5.5), span("target", 1, 4, "2 of 7"), span("wait", 4, 5, "miss")]
    trace = json.loads(trace_json(spans))
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    found = [(event["cat"], event["name"], named[event["tid"]], event["ts"], event["dur"]) for event in events]
    assert found == [
        ("target", "2 of 7", "target", 0, 3000),
        ("draft", "draft", "draft", 2000, 2500),
        ("wait", "miss", "target", 3000, 1000),
    ]


def test_the_suffix_chooses_the_format_and_the_file_is_replaced_whole(tmp_path: Path) -> None:
    for name in ("run.svg", "run.JSON"):
        (tmp_path / name).write_text("before")
        write_timeline(tmp_path / name, rounds(2), title="run")
    assert ElementTree.parse(tmp_path / "run.svg").getroot().tag == SVG + "svg"
    assert "traceEvents" in json.loads((tmp_path / "run.JSON").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"run.svg", "run.JSON"}


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run.svg"
    path.write_text("before")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_timeline(path, rounds(2), title="run")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("run.svg", "before")]


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


def test_a_timeline_leaves_a_drafter_its_own_policies(
    run: Run, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Policies] = []

    def note(_: object, __: object, policies: Policies, ___: object) -> None:
        seen.append(policies)
        raise ConfigError("enough was seen")

    monkeypatch.setattr(engine, "open_engine", note)
    paper = ("generate", target, "--drafter", "layer_skip", "--search", "paper", *SAMPLED)
    for flags in ((), ("--timeline", str(tmp_path / "run.svg"))):
        run(*paper, *flags)
    plain, traced = seen
    assert plain == Policies.of(paper_layer_skip())
    assert traced == replace(plain, remote=RemotePolicy(is_traced=True))


def test_a_trace_has_the_passes_of_every_round(run: Run, target: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    shown = run("generate", target, "--drafter", "none", "--json", *SAMPLED, "--timeline", str(path))
    assert shown.exit_code == 0, shown.output
    events = json.loads(path.read_text())["traceEvents"]
    num_passes = sum(event.get("cat") == "target" for event in events)
    assert num_passes == json.loads(shown.stdout)["stats"]["num_rounds"] == 24


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
