"""The report as one HTML page: it loads nothing, has no scripts, and all data in it is escaped."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from forerun.bench.report import plots
from forerun.bench.report.columns import COLUMNS, interval, milliseconds, number, speed, times
from forerun.bench.report.plots import Look, Looks
from forerun.bench.report.summary import Row, Summary
from forerun.bench.report.table import ALL, fastest
from forerun.bench.report.wording import circumstances, fastest_peer, headline, verdict_on_texts

FOLDER: Final = Path(__file__).parent
PEER: Final = "another program"


def write(summary: Summary) -> str:
    """The page as HTML."""
    found = headline(summary)
    looks = {
        name: Look(number=place, is_peer=summary.kind_of(name) == "peer")
        for place, name in enumerate(summary.contestants)
    }
    template = Template((FOLDER / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"{found.text} - forerun bench"),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        headline=escape(found.text),
        detail=escape(found.detail),
        tiles=_tiles(summary, found.row),
        body="\n".join(_sections(summary, looks)),
        footer=f"Written by forerun bench report. {escape(str(summary.about.get('forerun', '')))}",
    )


def _sections(summary: Summary, looks: Looks) -> Iterator[str]:
    if summary.rows:
        rows = summary.over_all(summary.temperatures[0])
        yield _overview(summary, looks)
        yield _by_dataset(summary, looks)
        yield _drafting(rows, looks)
        yield _latency(rows, looks)
    yield _circumstances(summary)
    if summary.rows:
        yield _full_table(summary)
    yield _meanings()


def _tiles(summary: Summary, row: Row | None) -> str:
    if row is None:
        return ""
    compared = row.exactness
    is_wrong = compared is not None and compared.num_different > 0 and summary.kind_of(row.contestant) != "peer"
    name, slow = row.contestant, row.latency.token_p95_s
    tiles = [(speed(row.speed.value if row.speed else None), "tokens/s", f"{name}, all tokens over all their time", "")]
    if row.drafting.tokens_per_round is not None:
        tiles.append((number(row.drafting.tokens_per_round), "tokens", "per pass of the target, bonus included", ""))
    if slow is not None:
        tiles.append((milliseconds(slow), "ms", "per token, or more, for the slowest 5 % of tokens", ""))
    if compared is not None:
        text = f"texts equal those of drafter none token for token; {compared.num_near_tie} differ at a near-tie"
        tiles.append((f"{compared.num_same}/{compared.num_compared}", "", text, "bad" if is_wrong else ""))
    cells = "".join(
        f'<div class="tile {kind}"><b>{escape(value)}<small>{unit}</small></b><span>{escape(text)}</span></div>'
        for value, unit, text, kind in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _overview(summary: Summary, looks: Looks) -> str:
    peer = fastest_peer(summary)
    about = "All tokens over all the time they took; whiskers are 95 % intervals over prompts."
    if summary.baseline is not None:
        about += f" The dashed line is {summary.baseline}."
    if peer is not None and peer.speed is not None:
        about += f" The fastest other program is {peer.contestant} with {speed(peer.speed.value)} tokens/s."
    lists = [
        f"<h3>{_at(temperature)}</h3>{_ranking(summary.over_all(temperature), summary, looks)}"
        for temperature in summary.temperatures
    ]
    return f'<section><h2>Over all data sets</h2><p class="about">{escape(about)}</p>{"".join(lists)}</section>'


def _ranking(rows: Sequence[Row], summary: Summary, looks: Looks) -> str:
    known = sorted((row for row in rows if row.speed), key=lambda row: -(row.speed.value if row.speed else 0.0))
    longest = max((row.speed.high or row.speed.value for row in known if row.speed), default=1.0)
    base = next((row.speed.value for row in known if row.speed and row.contestant == summary.baseline), None)
    return f'<ol class="ranking">{"".join(_ranked(row, longest, base, looks[row.contestant]) for row in known)}</ol>'


def _ranked(row: Row, longest: float, base: float | None, look: Look) -> str:
    assert row.speed is not None, "rows without a speed are not ranked"
    low, high = row.speed.low or row.speed.value, row.speed.high or row.speed.value

    def percent(value: float) -> str:
        return f"{100 * value / longest:.2f}%"

    line = f'<span class="one" style="left:{percent(base)}"></span>' if base is not None else ""
    bar = f'<span class="bar" style="width:{percent(row.speed.value)};background:{colour(look)}"></span>'
    whisker = f'<span class="around" style="left:{percent(low)};width:{percent(high - low)}"></span>'
    versus = (
        f"<b>{times(row.ratio)}</b><small>{interval(row.ratio)}</small>" if row.ratio else "<small>baseline</small>"
    )
    peer = f"<small>{PEER}</small>" if look.is_peer else ""
    return (
        f'<li><span class="name">{escape(row.contestant)}{peer}</span><span class="track">{bar}{line}{whisker}</span>'
        f'<span class="value"><b>{speed(row.speed.value)}</b><small>tok/s</small></span>'
        f'<span class="versus">{versus if base is not None else ""}</span></li>'
    )


def _by_dataset(summary: Summary, looks: Looks) -> str:
    parts = []
    for place, temperature in enumerate(summary.temperatures):
        rows = [row for row in summary.rows if row.dataset is not None and row.temperature == temperature]
        drawn = plots.speeds(rows, summary.datasets, looks, name=f"speeds{place}")
        parts.append(f'<h3>{_at(temperature)}</h3><figure class="wide">{drawn}</figure>')
    about = "Tokens/s by data set, with 95 % intervals over prompts."
    return f'<section><h2>By data set</h2><p class="about">{about}</p>{_legend(looks)}{"".join(parts)}</section>'


def _drafting(rows: Sequence[Row], looks: Looks) -> str:
    """Empty if no contestant drafted."""
    if not any(row.drafting.reached or sum(row.drafting.accepted_counts[1:]) for row in rows):
        return ""
    names = [row.contestant for row in rows if sum(row.drafting.accepted_counts[1:])]
    return (
        f"<section><h2>Acceptance of drafts</h2>{_legend({name: looks[name] for name in names})}"
        f'<div class="pair"><figure>{plots.accepted(rows, looks)}<figcaption>Rounds by the number of drafted tokens '
        "that were accepted; the bonus token is not counted.</figcaption></figure>"
        f"<figure>{plots.acceptance_by_depth(rows, looks)}<figcaption>Rounds with a proposal that accepted at least "
        "this many tokens; dotted: of the rounds that accepted at least one less.</figcaption></figure></div></section>"
    )


def _latency(rows: Sequence[Row], looks: Looks) -> str:
    names = [row.contestant for row in rows if row.latency.token_curve_s]
    if not names:
        return ""
    about = (
        "Share of tokens that took at most this time; further left is faster. Tokens of one round come together and "
        "share its time. Dashed lines are other programs."
    )
    return (
        f'<section><h2>Time per token</h2><p class="about">{about}</p>'
        f"{_legend({name: looks[name] for name in names})}"
        f'<figure class="wide">{plots.latencies(rows, looks)}</figure></section>'
    )


def _circumstances(summary: Summary) -> str:
    pairs = "".join(_fact(label, value) for label, value in circumstances(summary))
    skips = [f"<li><b>Left out:</b> {escape(who)}: {escape(why)}</li>" for who, why in summary.skips.items()]
    notes = [f"<li>{escape(note)}</li>" for note in summary.notes]
    verdict = f'<p class="about">{escape(verdict_on_texts(summary))}</p>'
    more = f'<ul class="notes">{"".join(skips + notes)}</ul>' if skips or notes else ""
    return f'<section><h2>Circumstances</h2>{verdict}<dl class="facts">{pairs}</dl>{more}</section>'


def _fact(label: str, value: str) -> str:
    if label == "command":
        return f'<div class="whole"><dt>command</dt><dd><code>{escape(value)}</code></dd></div>'
    return f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"


def _full_table(summary: Summary) -> str:
    heads = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in COLUMNS)
    groups = []
    for temperature in summary.temperatures:
        for dataset in (None, *summary.datasets):
            rows = [row for row in summary.rows if (row.dataset, row.temperature) == (dataset, temperature)]
            groups.append(_group(f"{dataset or ALL}, {_at(temperature).lower()}", rows))
    return (
        '<section><h2>All numbers</h2><div class="scroll" tabindex="0" role="region" aria-label="all numbers">'
        f'<table class="full"><thead><tr><th scope="col">contestant</th>{heads}</tr></thead>{"".join(groups)}</table>'
        "</div></section>"
    )


def _group(title: str, rows: Sequence[Row]) -> str:
    best = fastest(rows)
    lines = "".join(
        f'<tr{" class=best" if row is best else ""}><th scope="row">{escape(row.contestant)}</th>'
        + "".join(f"<td>{escape(column.cell(row))}</td>" for column in COLUMNS)
        + "</tr>"
        for row in rows
    )
    head = f'<th colspan="{len(COLUMNS) + 1}" scope="rowgroup"><span>{escape(title)}</span></th>'
    return f'<tbody><tr class="group">{head}</tr>{lines}</tbody>'


def _meanings() -> str:
    pairs = "".join(f"<dt>{escape(column.title)}</dt><dd>{escape(column.meaning)}</dd>" for column in COLUMNS)
    return f"<details><summary>What the numbers mean</summary><dl>{pairs}</dl></details>"


def _legend(looks: Looks) -> str:
    items = "".join(f'<li><i style="background:{colour(look)}"></i>{escape(name)}</li>' for name, look in looks.items())
    return f'<ul class="legend">{items}</ul>'


def colour(look: Look) -> str:
    return f"var(--c{look.number % plots.NUM_COLOURS})"


def _at(temperature: float) -> str:
    return "Greedy" if temperature == 0 else f"Temperature {temperature:g}"
