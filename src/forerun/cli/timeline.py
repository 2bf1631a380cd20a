"""A timeline of target and drafter in a generation, as a picture or as a trace for a viewer."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, inf, log10
from pathlib import Path
from statistics import median_high
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable, write_whole
from forerun.core.steps import Span, StepStats

SUFFIXES: Final = (".svg", ".json")
ROUNDS_SHOWN: Final = 12
MAX_TICKS: Final = 14
MAX_TITLE: Final = 68  # characters that fit next to the note on the right

# Pixels. The picture is as wide as a README shows it.
WIDTH = 1000
HEIGHT = 296
MARGIN = 24
LEFT = 84
RIGHT = WIDTH - MARGIN
LANES: Final = {"target": (88, 64), "wait": (88, 64), "draft": (162, 40)}  # top, height
AXIS_Y: Final = 212
CHARACTER: Final = 6.2  # of a label, on average
NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

STYLE: Final = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a }
.sheet { fill: #fbfcfd; stroke: #d0d7de }
.title { font-size: 17px; font-weight: 600; fill: #1f2328 }
.lane { font-size: 13px; font-weight: 600; fill: #1f2328 }
.share { font-size: 17px; font-weight: 600; fill: #1f2328 }
.track { fill: #eef1f4 }
.grid { stroke: #d8dee4 }
.axis { stroke: #8c959f }
.target { fill: #1f5fbf } .target.odd { fill: #336fcb }
.draft { fill: #e8912d }
.wait { fill: url(#hatch) }
.label { font-size: 11px; text-anchor: middle }
.on-target { fill: #ffffff } .on-draft { fill: #3d2400 } .on-wait { fill: #82231c }
.middle { text-anchor: middle } .end { text-anchor: end }
"""
HATCH: Final = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#fdeceb"/><rect width="1.6" height="6" fill="#dd8078"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of the time from the first span's start to the last one's end, each between 0 and 1.

    overlap is the part of the drafting time in which the target also worked; None if there was no drafting.
    """

    target_busy: float
    waiting: float
    draft_busy: float
    overlap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The stretch of time a picture shows, in seconds of the spans' clock."""

    start_s: float
    end_s: float

    def x(self, time_s: float) -> float:
        """Where this time is drawn, in pixels; times outside are drawn at the edge."""
        part = (time_s - self.start_s) / (self.end_s - self.start_s)
        return LEFT + min(max(part, 0.0), 1.0) * (RIGHT - LEFT)


def check_timeline_path(path: Path) -> None:
    """Raise ConfigError for a file that cannot be written, before any work is done for it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--timeline {path} ends in {path.suffix or 'no suffix'!r}: "
            "name a file that ends in .svg for a picture, or in .json for a trace viewer"
        )
    require_writable(path, needs_folder=True)


def write_timeline(path: Path, rounds: Sequence[StepStats], *, title: str) -> None:
    """Write the picture or the trace, by the file's suffix. An existing file is replaced when the new one is whole."""
    check_timeline_path(path)
    spans = [span for stats in rounds for span in stats.spans]
    text = draw_svg(spans, title=title) if path.suffix.lower() == ".svg" else trace_json(rounds)
    write_whole(path, text)


def trace_json(rounds: Sequence[StepStats]) -> str:
    """Chrome's trace-event format, in microseconds from the first span on. A wait is shown in the target's row; the
    target's work has the numbers of its round."""
    spans = [(span, stats) for stats in rounds for span in stats.spans]
    start_s = _extent([span for span, _ in spans]).start_s
    rows = {"target": 1, "wait": 1, "draft": 2}
    names = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": rows[lane], "args": {"name": lane}}
        for lane in ("target", "draft")
    ]
    events = [
        {
            "name": span.label or span.lane,
            "cat": span.lane,
            "ph": "X",
            "ts": round(1e6 * (span.start_s - start_s), 3),
            "dur": round(1e6 * (span.end_s - span.start_s), 3),
            "pid": 1,
            "tid": rows[span.lane],
            "args": stats.numbers() if span.lane == "target" else {},
        }
        for span, stats in sorted(spans, key=lambda pair: pair[0].start_s)
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]})


def draw_svg(spans: Sequence[Span], *, title: str) -> str:
    """A picture in one file. The shares below it are those of the whole run, not of the part shown."""
    run = _extent(spans)
    window = _middle(spans)
    length_ms, begin_ms, end_ms = (
        1e3 * time_s for time_s in (run.end_s - run.start_s, window.start_s - run.start_s, window.end_s - run.start_s)
    )
    shown = title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"
    note = f"{begin_ms:.0f} to {end_ms:.0f} of {length_ms:.0f} ms"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img"><title>{_escaped(title)}</title><style>{STYLE}</style>{HATCH}',
        f'<rect class="sheet" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        _text(shown, MARGIN, 36, kind="title"),
        _text(note, RIGHT, 36, kind="end"),
        *_legend(spans),
        *_tracks(),
        *_axis(window),
        *_boxes(spans, window),
        _footer(shares(spans)),
        _text("whole run", RIGHT, HEIGHT - 24, kind="end"),
        "</svg>\n",
    ]
    return "\n".join(parts)


def shares(spans: Sequence[Span]) -> Shares:
    """The shares of the run in which each side worked, and the share of drafting that took no extra time."""
    run = _extent(spans)
    run_s = run.end_s - run.start_s
    target_s, wait_s, draft_s = (_busy_s(spans, lane) for lane in ("target", "wait", "draft"))
    together_s = max(0.0, target_s + draft_s - _busy_s(spans, "target", "draft"))
    return Shares(
        target_busy=target_s / run_s,
        waiting=wait_s / run_s,
        draft_busy=draft_s / run_s,
        overlap=together_s / draft_s if draft_s else None,
    )


def _busy_s(spans: Sequence[Span], *lanes: str) -> float:
    """Seconds in which at least one span of these lanes ran."""
    busy_s = 0.0
    until_s = -inf
    for start_s, end_s in sorted((span.start_s, span.end_s) for span in spans if span.lane in lanes):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s


def _extent(spans: Sequence[Span]) -> Window:
    """The whole run."""
    assert spans, "a run without spans has no picture"
    start_s = min(span.start_s for span in spans)
    end_s = max(span.end_s for span in spans)
    return Window(start_s=start_s, end_s=max(end_s, start_s + 1e-6))  # a microsecond at least, to divide by


def _middle(spans: Sequence[Span]) -> Window:
    """A dozen rounds from the middle of the run; all of it where there are no more."""
    starts = sorted(span.start_s for span in spans if span.lane == "target")
    first = (len(starts) - ROUNDS_SHOWN) // 2
    return _extent(spans) if first <= 0 else Window(start_s=starts[first], end_s=starts[first + ROUNDS_SHOWN])


def _escaped(text: str) -> str:
    """The text escaped for SVG; a character that XML does not allow becomes a replacement character."""
    return escape(NOT_XML.sub("\ufffd", text))


def _text(text: str, x: float, y: float, *, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_escaped(text)}</text>'


def _rect(kind: str, x: float, y: float, *, width: float, height: float, hint: str = "") -> str:
    frame = f'<rect class="{kind}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" rx="2"'
    return f"{frame}><title>{_escaped(hint)}</title></rect>" if hint else f"{frame}/>"


def _legend(spans: Sequence[Span]) -> list[str]:
    """The meanings of the colours, with the typical length of each kind of work."""
    parts = []
    x = float(LEFT)
    for lane, words in (("target", "target verifies"), ("draft", "draft grows the tree"), ("wait", "target waits")):
        lengths_ms = [1e3 * (span.end_s - span.start_s) for span in spans if span.lane == lane]
        text = f"{words}, median {median_high(lengths_ms):.2f} ms" if lengths_ms else f"{words}: never"
        parts += [_rect(f"key {lane}", x, 56, width=14, height=14), _text(text, x + 20, 67, kind="key")]
        x += 60 + CHARACTER * len(text)
    return parts


def _tracks() -> list[str]:
    parts = []
    for lane in ("target", "draft"):
        top, height = LANES[lane]
        parts.append(_rect("track", LEFT, top, width=RIGHT - LEFT, height=height))
        parts.append(_text(lane, MARGIN, top + height / 2 + 4.5, kind="lane"))
    return parts


def _axis(window: Window) -> list[str]:
    """Milliseconds from the window's start, at round numbers."""
    length_ms = 1e3 * (window.end_s - window.start_s)
    power = 10.0 ** floor(log10(length_ms / MAX_TICKS))
    step_ms = next(step for factor in (1, 2, 5, 10) if length_ms / (step := factor * power) <= MAX_TICKS)
    parts = [f'<path class="axis" d="M{LEFT} {AXIS_Y}H{RIGHT}"/>']
    for tick in range(floor(length_ms / step_ms + 1e-6) + 1):  # the last one may equal the end, up to rounding
        x = window.x(window.start_s + 1e-3 * tick * step_ms)
        parts += [
            f'<path class="grid" d="M{x:.1f} {LANES["target"][0] - 4}V{AXIS_Y}"/>',
            f'<path class="axis" d="M{x:.1f} {AXIS_Y}v5"/>',
            _text(f"{tick * step_ms:g}" + (" ms" if tick == 0 else ""), x, AXIS_Y + 19, kind="middle"),
        ]
    return parts


def _boxes(spans: Sequence[Span], window: Window) -> list[str]:
    """One rectangle per span within the window, and its label where it fits. Every other target pass is lighter."""
    parts = []
    num_passes = 0
    for span in sorted(spans, key=lambda span: span.start_s):
        num_passes += span.lane == "target"
        if span.end_s <= window.start_s or span.start_s >= window.end_s:
            continue
        top, height = LANES[span.lane]
        x = window.x(span.start_s)
        end_x = window.x(span.end_s)
        kind = f"{span.lane} odd" if span.lane == "target" and num_passes % 2 else span.lane
        hint = f"{span.lane}, {1e3 * (span.end_s - span.start_s):.2f} ms{': ' * bool(span.label)}{span.label}"
        parts.append(_rect(f"span {kind}", x, top, width=max(end_x - x - 0.8, 0.8), height=height, hint=hint))
        if span.label and CHARACTER * len(span.label) + 6 <= end_x - x:
            parts.append(_text(span.label, (x + end_x) / 2, top + height / 2 + 4, kind=f"label on-{span.lane}"))
    return parts


def _footer(found: Shares) -> str:
    """The shares of the whole run, each with its name."""
    told = [("target busy", found.target_busy), ("waiting", found.waiting), ("draft busy", found.draft_busy)]
    if found.overlap is not None:
        told.append(("of the drafting under target time", found.overlap))
    pieces = (f'<tspan class="share">{share:.1%}</tspan> {words}' for words, share in told)
    return f'<text class="footer" x="{LEFT}" y="{HEIGHT - 24}">{"&#160;&#160;&#160;&#160;&#160; ".join(pieces)}</text>'
