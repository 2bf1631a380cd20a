"""The report in a terminal: speeds over all data sets, then for each data set."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun_lab.bench.report.columns import MAIN_COLUMNS, TIMES, UNKNOWN, interval, speed, times
from forerun_lab.bench.report.compare import Comparison
from forerun_lab.bench.report.streams import TITLES, Stream, phase_cells, title_of
from forerun_lab.bench.report.summary import Row, Summary
from forerun_lab.bench.report.wording import ALL, fastest, headline, sampling, verdict_on_texts


def draw(summary: Summary) -> RenderableType:
    """The whole report for rich to print. Names are printed literally, without rich's markup."""
    found = headline(summary)
    return Group(
        Text(found.text, style="bold"),
        Text(found.detail, style="dim"),
        *_tables(summary),
        Text(verdict_on_texts(summary)),
        *(Text(f"left out: {who}: {why}", style="yellow") for who, why in summary.skips.items()),
        *(Text(f"note: {note}", style="dim") for note in summary.notes),
    )


def draw_comparison(comparison: Comparison) -> RenderableType:
    """The rows of two runs, with slower ones marked."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("data set", "contestant", "temp."):
        table.add_column(title)
    for title in ("second/first", "95 % interval", "prompts", "p", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for row in comparison.rows:
        verdict = Text("slower", style="bold red") if row.is_slower else Text("")
        table.add_row(
            Text(row.dataset or ALL),
            Text(row.contestant),
            f"{row.temperature:g}",
            times(row.ratio),
            interval(row.ratio, 3),
            str(row.ratio.num_prompts),
            f"{row.chance:.4f}" if row.ratio.low is not None else UNKNOWN,
            verdict,
        )
    return table


def _tables(summary: Summary) -> Iterator[RenderableType]:
    for temperature in summary.temperatures:
        rows = summary.over_all(temperature)
        yield Text("")
        yield _title(ALL, temperature)
        yield _main_table(rows)
        if len(summary.datasets) > 1:
            yield Text("")
            yield _title(
                f"{TIMES} baseline (tokens/s) by data set" if summary.baseline else "tokens/s by data set", temperature
            )
            yield _by_dataset(summary, temperature)
    for stream in summary.streams:
        yield Text("")
        yield Text(title_of(stream), style="bold cyan")
        yield _phases(stream)
    yield Text("")


def _title(text: str, temperature: float) -> Text:
    return Text(f"{text}, {sampling(temperature)}", style="bold cyan")


def _main_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column(
        "contestant", overflow="fold", min_width=min(20, max((len(row.contestant) for row in rows), default=0))
    )
    for column in MAIN_COLUMNS:
        table.add_column(column.title, justify="right")
    best = fastest(rows)
    for row in rows:
        cells = [Text(row.contestant), *(Text(column.cell(row)) for column in MAIN_COLUMNS)]
        table.add_row(*cells, style="bold" if row is best else None)
    return table


def _phases(stream: Stream) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for number, title in enumerate(TITLES):
        table.add_column(title, justify="right" if number else "left")
    for cells in phase_cells(stream):
        table.add_row(*cells)
    return table


def _by_dataset(summary: Summary, temperature: float) -> Table:
    """A row per contestant, a column per data set; the fastest of each data set is bold."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("contestant", overflow="fold")
    columns = [
        [row for row in summary.rows if row.dataset == dataset and row.temperature == temperature]
        for dataset in summary.datasets
    ]
    for dataset in summary.datasets:
        table.add_column(Text(dataset.replace("_", " ")), justify="right")
    for contestant in summary.contestants:
        cells = [_cell(rows, contestant) for rows in columns]
        table.add_row(Text(contestant), *cells)
    return table


def _cell(rows: Sequence[Row], contestant: str) -> Text:
    row = next((row for row in rows if row.contestant == contestant), None)
    if row is None or row.speed is None:
        return Text(UNKNOWN)
    told = speed(row.speed.value)
    text = f"{times(row.ratio)} ({told})" if row.ratio else told
    return Text(text, style="bold" if row is fastest(rows) else "")
