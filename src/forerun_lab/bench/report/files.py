"""The numbers of a report as CSV, and its plots as SVG files that stand alone."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, Final

from forerun_lab.bench.report.summary import Row, Summary

STYLE: Final = Path(__file__).parent / "page.css"
MARGIN: Final = 16  # pixels, as all lengths here
TITLE: Final = 34
LEGEND_LINE: Final = 22
LETTER: Final = 7.4  # mean width at 13 pixels, rounded up


def table(summary: Summary) -> str:
    """A line for each data set, contestant and temperature, with every number of report.json that is not a list.

    A number inside another is named with a dot, such as `ratio.low`; what is not known is empty.
    """
    lines = [dict(_flat(asdict(row))) for row in summary.rows]
    order = [field.name for field in fields(Row)]
    names = sorted(dict.fromkeys(name for line in lines for name in line), key=lambda name: order.index(_first(name)))
    parents = {name.rpartition(".")[0] for name in names}
    out = StringIO()
    writer = csv.DictWriter(out, [name for name in names if name not in parents], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list | tuple):
            yield prefix + name, value


def _first(name: str) -> str:
    return name.partition(".")[0]


def pictures(summary: Summary) -> dict[str, str]:
    """The plots of the page by file name, each with its title and legend."""
    from forerun_lab.bench.report import plots  # needs matplotlib

    looks = plots.looks_of(summary)
    if not summary.rows:
        return {}
    drawn = {}
    for temperature in summary.temperatures:
        rows = [row for row in summary.rows if row.dataset is not None and row.temperature == temperature]
        drawn[f"speeds-temperature-{temperature:g}"] = plots.speeds(rows, summary.datasets, looks)
        drawn[f"tokens-per-round-temperature-{temperature:g}"] = plots.tokens_per_round(rows, summary.datasets, looks)
    rows = list(summary.over_all(summary.temperatures[0]))
    colours = {name: look.variable for name, look in looks.items()}
    found = {name: alone(picture, colours) for name, picture in drawn.items()}
    if any(row.shares for row in rows):
        found["time-of-a-round"] = alone(plots.time_of_a_round([row for row in rows if row.shares]))
    if any(row.latency.token_curve_s for row in rows):
        found["time-per-token"] = alone(plots.latencies(rows, looks), colours)
    if any(sum(row.drafting.accepted_counts[1:]) for row in rows):
        found["accepted"] = alone(plots.accepted(rows, looks), colours)
        found["acceptance-by-depth"] = alone(plots.acceptance_by_depth(rows, looks), colours)
    return {f"{name}.svg": picture for name, picture in found.items()}


def alone(picture: str, legend: Mapping[str, str] | None = None) -> str:
    """A plot of the page as a file: on white, in the page's light colours, with its title and a legend.

    Programs other than browsers know no CSS variables, so the colours are written out.

    Args:
        legend: the colour of each name.
    """
    label = re.search(r'aria-label="([^"]*)"', picture)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    assert label and box, "every plot has a title and a size"
    width = float(box[1])
    height = float(box[2])
    entries, num_lines = _legend(legend or {}, width)
    top = TITLE + num_lines * LEGEND_LINE
    whole = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * MARGIN:g}" height="{top + height + MARGIN:g}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="var(--ink)">\n'
        '<rect width="100%" height="100%" fill="var(--paper)"/>\n'
        f'<text x="{MARGIN}" y="{TITLE - 12}" font-size="15" font-weight="bold">{label[1]}</text>\n{entries}'
        f"{picture.replace('<svg ', _placed(top, width, height), 1)}\n</svg>\n"
    )
    colours = dict(re.findall(r"--(\w+): (#\w+)", STYLE.read_text(encoding="utf-8").partition("@media")[0]))
    written = re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], whole)
    return written.replace("font-family: inherit", "font-family: Helvetica, Arial, sans-serif")


def _placed(top: float, width: float, height: float) -> str:
    return f'<svg x="{MARGIN}" y="{top:g}" width="{width:g}" height="{height:g}" '


def _legend(colours: Mapping[str, str], width: float) -> tuple[str, int]:
    """The entries of the legend, in lines of at most this width, and the number of lines."""
    entries = ""
    x = 0.0
    line = 0
    for name, colour in colours.items():
        length = 20 + LETTER * len(name)
        if x and x + length > width:
            x = 0.0
            line += 1
        y = TITLE + line * LEGEND_LINE
        entries += f'<rect x="{MARGIN + x:g}" y="{y}" width="12" height="12" rx="3" fill="{colour}"/>'
        entries += f'<text x="{MARGIN + x + 18:g}" y="{y + 11}">{escape(name)}</text>\n'
        x += length + 18
    return entries, line + 1 if colours else 0
