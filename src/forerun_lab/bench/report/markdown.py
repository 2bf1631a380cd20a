"""The report as Markdown, for a README or an issue."""

import re
from collections.abc import Iterable, Sequence

from forerun_lab.bench.report.columns import COLUMNS, MAIN_COLUMNS, UNKNOWN, speed, times
from forerun_lab.bench.report.streams import TITLES, phase_cells, title_of
from forerun_lab.bench.report.summary import Row, Summary
from forerun_lab.bench.report.wording import circumstances, fastest, headline, sampling, verdict_on_texts

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def write(summary: Summary) -> str:
    """Headline, tables per temperature and data set, the circumstances, and the meanings of the numbers."""
    found = headline(summary)
    parts = [f"**{escape(found.text)}**  \n{escape(found.detail)}"]
    for temperature in summary.temperatures:
        parts.append(f"### {sampling(temperature).capitalize()}")
        parts.append(_main_table(summary.over_all(temperature)))
        if len(summary.datasets) > 1:
            parts.append(_by_dataset(summary, temperature))
    for stream in summary.streams:
        lines = [[escape(cell) for cell in cells] for cells in phase_cells(stream)]
        parts += [f"### {escape(title_of(stream))}", table(TITLES, lines)]
    parts.append(escape(verdict_on_texts(summary)))
    parts += [f"Left out: {escape(who)}: {escape(why)}" for who, why in summary.skips.items()]
    parts += [f"Note: {escape(note)}" for note in summary.notes]
    parts.append(_lines(("", ""), circumstances(summary)))
    meanings = [(column.title, column.meaning) for column in COLUMNS if column.is_main]
    parts.append(_lines(("number", "meaning"), meanings))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Escape a text for Markdown, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _main_table(rows: Sequence[Row]) -> str:
    best = fastest(rows)
    lines = [[escape(row.contestant), *(escape(column.cell(row)) for column in MAIN_COLUMNS)] for row in rows]
    strong = [[f"**{cell}**" for cell in line] if row is best else line for row, line in zip(rows, lines, strict=True)]
    return table(["contestant", *(column.title for column in MAIN_COLUMNS)], strong)


def _by_dataset(summary: Summary, temperature: float) -> str:
    lines = []
    for dataset in summary.datasets:
        rows = {row.contestant: row for row in summary.rows if (row.dataset, row.temperature) == (dataset, temperature)}
        best = fastest(list(rows.values()))
        cells = [_speed_cell(rows.get(name), best) for name in summary.contestants]
        lines.append([escape(dataset), *cells])
    return table(["data set", *map(escape, summary.contestants)], lines)


def _speed_cell(row: Row | None, best: Row | None) -> str:
    if row is None or row.speed is None:
        return UNKNOWN
    text = speed(row.speed.value) + (f" ({times(row.ratio)})" if row.ratio else "")
    return f"**{text}**" if row is best else text


def table(titles: Sequence[str], lines: Iterable[Sequence[str]], num_labels: int = 1) -> str:
    """A table of escaped cells; the first `num_labels` of a line are text, the others numbers."""
    rule = [*["---"] * num_labels, *["---:"] * (len(titles) - num_labels)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *lines))


def _lines(titles: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> str:
    return table(titles, [(escape(label), escape(value)) for label, value in pairs], num_labels=2)
