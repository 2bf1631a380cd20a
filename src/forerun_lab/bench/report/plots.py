"""The plots of a report, as SVG with the page's colours, so that they follow its light and dark themes.

matplotlib does not support CSS variables, so it draws with placeholder colours, which are replaced in its output.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from forerun_lab.bench.records.metrics import CURVE_SHARES, SLOW, DraftMeasures
from forerun_lab.bench.report.bootstrap import Estimate
from forerun_lab.bench.report.summary import Row, Summary

ROOM_FOR_LABEL = 1.12  # of the longest bar, on the right of which a label may stand
TEXT = "#c0ffe0"
LINES = "#c0ffe1"
FAINT = "#c0ffe2"
BAND = "#c0ffe3"
VARIABLES: Final = {TEXT: "var(--soft)", LINES: "var(--axis)", FAINT: "var(--grid)", BAND: "var(--band)"}
NUM_COLOURS: Final = 10
PARTS: Final = {"draft": "#c0fff6", "wait": "#c0fff5", "verify": "#c0fff9", "other": "#c0fff0"}  # of a round
MARKERS: Final = "osD^vP*Xph"
PIXEL: Final = 1 / 72  # inches: a point of the plot is then a pixel of the page
MAX_DEPTH_SHOWN: Final = 12
SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "text.parse_math": False,  # a name may contain a dollar sign
    "text.color": TEXT,
    "axes.edgecolor": LINES,
    "axes.labelcolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": LINES,
    "ytick.color": LINES,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "ytick.major.size": 0,
    "grid.color": FAINT,
    "grid.linewidth": 1,
    "path.simplify": True,
}
NOT_WANTED: Final = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
TAG: Final = re.compile(r"<[^>]+>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A contestant's colour, marker and line style, which are the same in every plot."""

    number: int
    is_peer: bool

    @property
    def colour(self) -> str:
        return f"#c0fff{self.number % NUM_COLOURS}"

    @property
    def variable(self) -> str:
        """The colour on the page."""
        return f"var(--c{self.number % NUM_COLOURS})"

    @property
    def marker(self) -> str:
        return MARKERS[self.number % len(MARKERS)]

    @property
    def dashes(self) -> str:
        """Dashed for other programs, so that they differ in more than colour."""
        return "--" if self.is_peer else "-"


Looks = dict[str, Look]


def looks_of(summary: Summary) -> Looks:
    """A look for each contestant, in the order of the report."""
    return {
        name: Look(number=number, is_peer=summary.kind_of(name) == "peer")
        for number, name in enumerate(summary.contestants)
    }


def speeds(rows: Sequence[Row], datasets: Sequence[str], looks: Looks, *, name: str = "speeds") -> str:
    """Bars of tokens/s with intervals, a group for each data set."""
    with _picture(name, (1040, 340), "Tokens per second by data set and contestant") as (axes, finish):
        _draw_by_dataset(axes, [(row, row.speed) for row in rows if row.speed], datasets, looks)
        axes.set_ylabel("tokens/s")
    return finish()


def tokens_per_round(rows: Sequence[Row], datasets: Sequence[str], looks: Looks, *, name: str = "rounds") -> str:
    """Bars of tokens per round, a group for each data set."""
    drawn = [
        (row, Estimate(value=row.drafting.tokens_per_round, low=None, high=None, num_prompts=row.num_answers))
        for row in rows
        if row.drafting.tokens_per_round is not None
    ]
    with _picture(name, (1040, 300), "Tokens per round by data set and contestant") as (axes, finish):
        _draw_by_dataset(axes, drawn, datasets, looks)
        axes.axhline(1, color=LINES, linewidth=1, linestyle="--")
        axes.set_ylabel("tokens per round")
    return finish()


def _draw_by_dataset(axes: Axes, values: Sequence[tuple[Row, Estimate]], datasets: Sequence[str], looks: Looks) -> None:
    """Bars with their intervals, a group for each data set."""
    names = [name for name in looks if any(row.contestant == name for row, _ in values)]
    width = 0.84 / max(len(names), 1)
    for row, estimate in values:
        if row.dataset is None:
            continue
        place = names.index(row.contestant)
        low = estimate.low or estimate.value
        high = estimate.high or estimate.value
        axes.bar(
            datasets.index(row.dataset) + (place - (len(names) - 1) / 2) * width,
            estimate.value,
            width * 0.88,
            yerr=[[max(estimate.value - low, 0)], [max(high - estimate.value, 0)]],
            color=looks[row.contestant].colour,
            linewidth=0,
            ecolor=TEXT,
            error_kw={"elinewidth": 1.2},
        )
    axes.set_xticks(range(len(datasets)), [dataset.replace("_", " ") or "answers" for dataset in datasets])
    axes.tick_params(axis="x", length=0, labelsize=13)
    axes.grid(axis="y")


def time_of_a_round(rows: Sequence[Row]) -> str:
    """Where the milliseconds of a mean round go."""
    known = [(row, row.shares, 1e3 * row.latency.round_s) for row in rows if row.shares and row.latency.round_s]
    names = [row.contestant for row, _, _ in known]
    with _picture("parts", (1040, 80 + 32 * len(known)), "Milliseconds of a round by what they are spent on") as (
        axes,
        finish,
    ):
        ends = np.zeros(len(known))
        for part, colour in PARTS.items():
            lengths = np.array([getattr(shares, part) * round_ms for _, shares, round_ms in known])
            axes.barh(names, lengths, 0.62, left=ends, color=colour, linewidth=0, label=part)
            ends += lengths
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds of a mean round")
        axes.grid(axis="x")
        axes.figure.legend(loc="outside upper left", ncols=len(PARTS), frameon=False)
    return finish()


def accepted(rows: Sequence[Row], looks: Looks) -> str:
    """How often a round accepted 0, 1, 2, ... drafted tokens."""
    rows = [row for row in rows if sum(row.drafting.accepted_counts[1:])]
    longest = max((len(_shares(row.drafting)) for row in rows), default=1)
    with _picture("accepted", (500, 290), "Share of rounds by accepted tokens") as (axes, finish):
        width = 0.84 / max(len(rows), 1)
        for place, row in enumerate(rows):
            parts = _shares(row.drafting)
            spots = np.arange(len(parts)) + (place - (len(rows) - 1) / 2) * width
            axes.bar(spots, parts, width * 0.9, color=looks[row.contestant].colour, linewidth=0)
        axes.set_xticks(range(longest), [_depth_label(place) for place in range(longest)])
        axes.set_xlabel("drafted tokens accepted in a round")
        _percent(axes.yaxis)
    return finish()


def acceptance_by_depth(rows: Sequence[Row], looks: Looks) -> str:
    """Share of rounds that accepted at least this many tokens; thin: of the rounds that accepted one less."""
    rows = [row for row in rows if row.drafting.reached]
    with _picture("depth", (500, 290), "Share of rounds that accepted at least this many tokens") as (axes, finish):
        for row in rows:
            look = looks[row.contestant]
            reached = row.drafting.reached[:MAX_DEPTH_SHOWN]
            kept = row.drafting.kept[:MAX_DEPTH_SHOWN]
            depths = range(1, len(reached) + 1)
            axes.plot(depths, kept, color=look.colour, linewidth=1.5, linestyle=":")
            axes.plot(depths, reached, color=look.colour, linewidth=2, marker=look.marker, markersize=5)
        axes.set_xlabel("drafted tokens accepted, at least")
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _percent(axes.yaxis)
    return finish()


def latencies(rows: Sequence[Row], looks: Looks) -> str:
    """The share of tokens that took at most a given time, with the slowest 5 % marked."""
    rows = [row for row in rows if row.latency.token_curve_s]
    with _picture("latency", (1040, 320), "Share of tokens by time per token") as (axes, finish):
        axes.axhspan(1 - SLOW, 1, color=BAND, linewidth=0)
        axes.text(0.995, 1 - SLOW - 0.015, "slowest 5 %", transform=axes.transAxes, ha="right", va="top", fontsize=11)
        for row in rows:
            look = looks[row.contestant]
            curve = np.maximum(row.latency.token_curve_s, 1e-7)
            axes.plot(1e3 * curve, CURVE_SHARES, color=look.colour, linewidth=2, linestyle=look.dashes)
        axes.set_xscale("log")
        axes.set_ylim(0, 1)
        axes.set_xlabel("milliseconds per token")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(FuncFormatter(_minor))
        axes.grid(axis="x", which="both")
        _percent(axes.yaxis)
    return finish()


def ranking(bars: Sequence[tuple[str, float, float, float]], marks: Sequence[float | None]) -> str:
    """Horizontal bars of tokens/s: name, value and the ends of its interval; and a mark where a published value is."""
    with _picture("ranking", (1040, 60 + 26 * len(bars)), "Tokens per second") as (axes, finish):
        for place, (_, value, low, high) in enumerate(bars):
            axes.barh(
                place,
                value,
                0.66,
                color="#c0fff1",
                linewidth=0,
                xerr=[[value - low], [high - value]],
                ecolor=TEXT,
                error_kw={"elinewidth": 1.2},
            )
            mark = marks[place]
            if mark is not None:
                axes.plot([mark, mark], [place - 0.42, place + 0.42], color="#c0fff5", linewidth=3)
                axes.annotate(
                    "published", (mark, place), xytext=(6, 0), textcoords="offset points", fontsize=10, va="center"
                )
        axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
        axes.set_xlim(0, ROOM_FOR_LABEL * max([*(high for *_, high in bars), *filter(None, marks)]))
        axes.invert_yaxis()
        axes.set_xlabel("tokens/s")
        axes.grid(axis="x")
    return finish()


def curves(found: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Matchness by the number of candidates scored, a step line for each search."""
    with _picture("curves", (1040, 300), "Matchness by candidates scored") as (axes, finish):
        for place, (name, points) in enumerate(found.items(), start=1):
            x = [0.0, *(steps for steps, _ in points)]
            y = [0.0, *(matchness for _, matchness in points)]
            axes.step(x, y, where="post", color=f"#c0fff{place}", linewidth=2, label=name)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("candidates scored")
        axes.set_ylabel("best matchness")
        axes.grid(axis="y")
        axes.legend(frameon=False, loc="lower right")
    return finish()


@contextmanager
def _picture(name: str, size: tuple[float, float], title: str) -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Axes to draw on, and a function that returns the SVG."""
    with warnings.catch_warnings(), matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        # matplotlib measures glyphs that its font lacks wrongly; the browser still shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(size[0] * PIXEL, size[1] * PIXEL), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        drawn = StringIO()
        yield axes, lambda: _themed(drawn.getvalue(), name, title)
        figure.savefig(drawn, format="svg", transparent=True)


def _themed(svg: str, name: str, title: str) -> str:
    """The plot in the page's colours and font, with unique ids, as wide as its container."""
    label = f'role="img" aria-label="{escape(title, quote=True)}" '
    themed = TAG.sub(lambda tag: _themed_tag(tag[0], name), NOT_WANTED.sub("", svg).strip())
    return themed.replace("<svg ", f"<svg {label}", 1)


def _themed_tag(tag: str, name: str) -> str:
    """Replace the colours in a tag. Only tags are changed, because the text between them may hold any name."""
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, variable)
    tag = re.sub(r"#c0fff(\d)", r"var(--c\1)", tag)
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)
    return re.sub(r' (?:width|height)="[^"]*"', "", tag) if tag.startswith("<svg") else tag


def _shares(drafting: DraftMeasures) -> list[float]:
    """Share of rounds by accepted tokens; the last entry includes all larger numbers."""
    counts = list(drafting.accepted_counts)
    counts = [*counts[:MAX_DEPTH_SHOWN], sum(counts[MAX_DEPTH_SHOWN:])] if len(counts) > MAX_DEPTH_SHOWN else counts
    return [count / sum(counts) for count in counts]


def _depth_label(depth: int) -> str:
    return f"{depth}+" if depth == MAX_DEPTH_SHOWN else str(depth)


def _percent(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    axis.axes.grid(axis="y")


def _minor(value: float, _: object) -> str:
    """Labels at 2 and 5 times a power of ten."""
    first = f"{value:e}"[0]
    return f"{value:g}" if first in "25" else ""
