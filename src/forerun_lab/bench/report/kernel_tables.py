"""The tables of `forerun bench kernels`: times, and shares of the memory bandwidth and of the peak arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun_lab.bench.records.kernel_costs import KernelCosts, OpCost, PassCosts
from forerun_lab.bench.report import markdown
from forerun_lab.bench.report.columns import UNKNOWN, milliseconds, share

MUCH_LOAD: Final = 0.05  # of a core
FEW_BYTES: Final = 0.05e6  # fewer bytes would be shown as 0.0 MB
Cell = Callable[[PassCosts, OpCost], str]
Key = tuple[str, str]  # name and format of an op


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """A row per op, a column per pass. The first `num_labels` cells of a line are text, the others numbers."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_labels: int = 2


def tables(costs: KernelCosts) -> list[KernelTable]:
    """The table of milliseconds, which add up to the pass, then the tables of both shares."""
    read = costs.read_bytes_per_s
    shares = [share(whole.num_bytes / whole.pass_s / read) for whole in costs.passes]
    peaks = [share(None if (peak_s := whole.peak_s()) is None else peak_s / whole.pass_s) for whole in costs.passes]
    found = [
        times_table(costs),
        _table(costs, "share of the memory's reading speed", lambda _, op: share(op.read_share(read)), shares),
        _table(costs, "share of the peak of the instructions", lambda _, op: share(op.peak_share), peaks),
    ]
    shown = [replace(table, lines=[line for line in table.lines if says_something(line)]) for table in found]
    return [table for table in shown if table.lines]


def says_something(line: Sequence[str]) -> bool:
    """Whether any pass has a number for this op."""
    return any(cell != UNKNOWN for cell in line[2:])


def times_table(costs: KernelCosts) -> KernelTable:
    """Milliseconds of all ops and of the rest, which add up to the pass."""
    table = _table(
        costs,
        "milliseconds",
        lambda _, op: milliseconds(op.time_s),
        [milliseconds(whole.pass_s) for whole in costs.passes],
    )
    lines = [[*line[:2], megabytes(costs, (line[0], line[1])), *line[2:]] for line in table.lines[:-1]]
    lines.append(["left over", "", "", *(milliseconds(whole.left_s) for whole in costs.passes)])
    num_bytes = megabytes_of(costs.passes[0].num_bytes)
    lines.append(["pass", "", num_bytes, *table.lines[-1][2:]])
    one = next((whole.pass_s for whole in costs.passes if not whole.is_prompt and whole.num_rows == 1), None)
    if one is not None:
        over = [UNKNOWN if whole.is_prompt else f"{whole.pass_s / one:.2f}" for whole in costs.passes]
        lines.append(["pass over that of one row", "", "", *over])
    return KernelTable(title=table.title, heads=[*table.heads[:2], "MB", *table.heads[2:]], lines=lines)


def about(costs: KernelCosts) -> list[str]:
    """Lines that describe the measurement, the machine, and the two limits."""
    peaks = ", ".join(f"{kind} {value / 1e9:.0f}" for kind, value in costs.peaks_per_s.items())
    threads = f"{costs.num_threads} thread{'' if costs.num_threads == 1 else 's'}"
    lines = [
        f"{costs.model} in {costs.dtype}, kernels {costs.tier}, {threads} of {costs.machine['cpu']}",
        f"{costs.context} tokens before the rows; {costs.repeats} repeats in turn; the fastest quarter counts",
        f"memory is read at {costs.read_bytes_per_s / 1e9:.1f} GB/s",
    ]
    if peaks:
        lines.append(f"peak of 10^9 multiply-adds a second, by the format of inputs: {peaks}")
    else:
        lines.append("the peak of the instructions is known only for x86 with AVX2 or more")
    if costs.foreign_load > MUCH_LOAD:
        lines.append(
            f"other programs took {costs.foreign_load:.0%} of a core: times are too long, especially the line left over"
        )
    cached = int(costs.machine["last_level_cache_bytes"])
    most = max(whole.num_bytes for whole in costs.passes)
    if most < cached:
        lines.append(
            f"the data of a pass ({most / 1e6:.0f} MB) may stay in the last cache ({cached / 1e6:.0f} MB), which is "
            "faster than memory: shares of the reading speed can exceed 100 %"
        )
    return lines


def as_markdown(table: KernelTable) -> str:
    """The table as Markdown."""
    return markdown.table(
        table.heads, ([markdown.escape(cell) for cell in line] for line in table.lines), table.num_labels
    )


def megabytes(costs: KernelCosts, key: Key) -> str:
    """Bytes that the ops of this name and format read in one pass of the first kind that has them."""
    found = (op for whole in costs.passes if (op := _find(whole, key)) is not None)
    return megabytes_of(next(found).num_bytes)


def megabytes_of(num_bytes: int) -> str:
    return UNKNOWN if num_bytes < FEW_BYTES else f"{num_bytes / 1e6:.1f}"


def _table(costs: KernelCosts, title: str, cell: Cell, totals: Sequence[str]) -> KernelTable:
    keys = dict.fromkeys((op.name, op.weights) for whole in costs.passes for op in whole.ops)
    lines = []
    for key in keys:
        ops = [(whole, _find(whole, key)) for whole in costs.passes]
        lines.append([*key, *(UNKNOWN if op is None else cell(whole, op) for whole, op in ops)])
    lines.append(["pass", "", *totals])
    return KernelTable(title=title, heads=["op", "weights", *map(_head, costs.passes)], lines=lines)


def _head(whole: PassCosts) -> str:
    return whole.name if whole.is_prompt else f"{whole.num_rows} row{'' if whole.num_rows == 1 else 's'}"


def _find(whole: PassCosts, key: Key) -> OpCost | None:
    return next((op for op in whole.ops if (op.name, op.weights) == key), None)
