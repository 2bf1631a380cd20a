"""The report as one HTML page: it loads nothing, has no scripts, and all data in it is escaped."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from forerun_lab.bench.report import plots, stream_plot, streams
from forerun_lab.bench.report.columns import COLUMNS, interval, milliseconds, number, speed, times
from forerun_lab.bench.report.plots import looks_of
from forerun_lab.bench.report.summary import Row, Summary
from forerun_lab.bench.report.wording import (
    ALL,
    circumstances,
    fastest,
    fastest_peer,
    headline,
    ranked,
    sampling,
    verdict_on_texts,
)

FOLDER: Final = Path(__file__).parent


def write(summary: Summary) -> str:
    """The page as HTML."""
    found = headline(summary)
    rows = summary.over_all(summary.temperatures[0]) if summary.rows else ()
    return (
        templates(FOLDER)
        .get_template("page.html")
        .render(
            summary=summary,
            style=(FOLDER / "page.css").read_text(encoding="utf-8"),
            headline=found,
            tiles=[] if found.row is None else _tiles(summary, found.row),
            peer=fastest_peer(summary),
            looks=looks_of(summary),
            rows=rows,
            drafting=[row.contestant for row in rows if sum(row.drafting.accepted_counts[1:])],
            divided=[row for row in rows if row.shares],
            timed=[row.contestant for row in rows if row.latency.token_curve_s],
            of_datasets=lambda temperature: [
                row for row in summary.rows if row.dataset is not None and row.temperature == temperature
            ],
            verdict=verdict_on_texts(summary),
            circumstances=circumstances(summary),
            groups=_groups(summary),
            columns=COLUMNS,
            bars=_bars,
            streams=streams,
            stream_plot=stream_plot,
            plots=plots,
            interval=interval,
            sampling=sampling,
            speed=speed,
            times=times,
        )
    )


def templates(folder: Path) -> Environment:
    """The templates of a folder. Every value is escaped unless its template says otherwise."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _tiles(summary: Summary, row: Row) -> list[tuple[str, str, str, str]]:
    """Value, unit, explanation and kind of the largest numbers."""
    compared = row.exactness
    name = row.contestant
    slow = row.latency.token_p95_s
    tiles = [(speed(row.speed.value if row.speed else None), "tokens/s", f"{name}, all tokens over all their time", "")]
    if row.drafting.tokens_per_round is not None:
        tiles.append((number(row.drafting.tokens_per_round), "tokens", "per pass of the target, bonus included", ""))
    if slow is not None:
        tiles.append((milliseconds(slow), "ms", "per token, or more, for the slowest 5 % of tokens", ""))
    if compared is not None:
        is_wrong = compared.num_different > 0 and summary.kind_of(name) != "peer"
        text = f"texts equal those of drafter none token for token; {compared.num_near_tie} differ at a near-tie"
        tiles.append((f"{compared.num_same}/{compared.num_compared}", "", text, "bad" if is_wrong else ""))
    return tiles


def _bars(summary: Summary, temperature: float) -> list[tuple[Row, dict[str, str]]]:
    """The rows of a ranking, fastest first, with the places of their bars, intervals and the baseline."""
    known = [(row, row.speed) for row in ranked(summary.over_all(temperature)) if row.speed]
    longest = max((estimate.high or estimate.value for _, estimate in known), default=1.0)
    base = next((estimate.value for row, estimate in known if row.contestant == summary.baseline), None)

    def percent(value: float) -> str:
        return f"{100 * value / longest:.2f}%"

    bars = []
    for row, estimate in known:
        low = estimate.low or estimate.value
        high = estimate.high or estimate.value
        places = {"value": percent(estimate.value), "low": percent(low), "around": percent(high - low)}
        bars.append((row, places | {"base": "" if base is None else percent(base)}))
    return bars


def _groups(summary: Summary) -> list[tuple[str, list[Row], Row | None]]:
    """Title, rows and fastest row of each part of the table of all numbers."""
    groups = []
    for temperature in summary.temperatures:
        for dataset in (None, *summary.datasets):
            rows = [row for row in summary.rows if (row.dataset, row.temperature) == (dataset, temperature)]
            groups.append((f"{dataset or ALL}, {sampling(temperature)}", rows, fastest(rows)))
    return groups
