"""forerun bench kernels: how fast every op is, how near to what the machine can do, and whether it is right."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.declare import option, output
from forerun.cli.failures import say, shows_errors
from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable, write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.bench.ceilings import Ceilings
    from forerun.bench.kernel_clock import Spread
    from forerun.bench.kernel_report import KernelReport, KernelTiming

PIPED_WIDTH: Final = 140
COLUMNS: Final = ("op", "rows", "data in", "reference", "{candidate}", "ratio", "floor", "reached", "difference")


class KernelDType(StrEnum):
    """What to compute in. auto: bfloat16 on a GPU and on a CPU that multiplies it natively, else float32."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@shows_errors
def kernels(
    shapes: Annotated[
        str | None, option("--shapes", help="Of builtin, builtin-draft, 125m, 1.1b, 8b. Default: all but 8b.")
    ] = None,
    rows: Annotated[str, option("--rows", help="Rows of a pass.")] = "1,8,16,32",
    dtype: Annotated[KernelDType, option("--dtype", help="What to compute in.")] = KernelDType.AUTO,
    device: Annotated[str, option("--device", help="cpu, or a CUDA device.")] = "cpu",
    threads: Annotated[int | None, option("--threads", "-t", help="CPU threads.")] = None,
    context: Annotated[int, option("--context", help="Tokens in the cache.")] = 512,
    budget_s: Annotated[float, option("--budget-s", help="Seconds for everything.")] = 120.0,
    json_file: Annotated[Path | None, output("--json", help="Write all numbers here.")] = None,
) -> None:
    """Time every op beside its reference, and check its result. Exit code 1 when one is wrong."""
    from forerun.bench.kernel_report import KernelPlan
    from forerun.bench.kernel_shapes import USUAL_SHAPES
    from forerun.bench.kernels import measure_kernels, usual_dtype

    plan = KernelPlan(
        shapes=USUAL_SHAPES if shapes is None else tuple(name.strip() for name in shapes.split(",")),
        rows=read_rows(rows),
        dtype=usual_dtype(device) if dtype is KernelDType.AUTO else dtype.value,
        device=device,
        num_threads=threads,
        context=context,
        budget_s=budget_s,
    )
    if json_file is not None:
        require_writable(json_file)
    say(f"measuring {', '.join(plan.shapes)} in {plan.dtype} for about {budget_s:g} s")
    report = measure_kernels(plan)
    show(report)
    if json_file is not None:
        write_whole(json_file, json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n", makes_folder=True)
    if report.wrong:
        raise typer.Exit(1)


def read_rows(text: str) -> tuple[int, ...]:
    """Numbers between commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"rows {text!r} are no numbers between commas: write them like 1,8,16,32") from error


def show(report: "KernelReport") -> None:
    """Circumstances, a table for each model, and what was left out or wrong."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_WIDTH)
    console.print(", ".join(f"{name} {value}" for name, value in report.machine.items()), markup=False)
    console.print(ceilings_line(report.ceilings), markup=False)
    for shape in dict.fromkeys(timing.shape for timing in report.timings):
        timings = [timing for timing in report.timings if timing.shape == shape]
        console.print(table(f"{shape}, {report.plan.dtype}", timings, report.candidate))
    for name in report.left_out:
        console.print(f"not measured for lack of time: {name}", markup=False)
    for timing in report.wrong:
        where = f"{timing.shape}: {timing.op}, {timing.part}, {timing.num_rows} rows"
        console.print(f"WRONG {where}: {difference(timing)} from the reference", markup=False)


def ceilings_line(ceilings: "Ceilings") -> str:
    def size(spread: "Spread", unit: str) -> str:
        return f"{spread.median / 1e9:.0f} ({spread.low / 1e9:.0f} to {spread.high / 1e9:.0f}) {unit}"

    products = (f"{dtype} {size(spread, 'Gop/s')}" for dtype, spread in ceilings.matmul.items())
    parts = (
        f"read {size(ceilings.read, 'GB/s')}",
        f"copy {size(ceilings.copy, 'GB/s')}",
        f"read from cache {size(ceilings.cached_read, 'GB/s')}",
        *products,
    )
    return f"ceilings of {ceilings.device}, {ceilings.num_threads} threads: {', '.join(parts)}"


def table(title: str, timings: list["KernelTiming"], candidate: str) -> "Table":
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    for column in COLUMNS:
        is_text = column in ("op", "data in")
        grid.add_column(column.format(candidate=candidate), justify="left" if is_text else "right", no_wrap=True)
    for timing in timings:
        grid.add_row(*cells(timing), style=None if timing.is_right else "red")
    return grid


def cells(timing: "KernelTiming") -> tuple[str, ...]:
    """A row of the table; "~" marks times that others disturbed."""
    from forerun.bench.kernel_clock import MAX_LOST

    ratio, mark = timing.ratio, "~" if timing.lost > MAX_LOST else ""
    return (
        f"{timing.op.removeprefix('pack_')}: {timing.part}",
        str(timing.num_rows),
        "cache" if timing.is_cached else "memory",
        mark + duration(timing.reference_s),
        mark + duration(timing.candidate_s),
        f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
        duration(timing.floor_s),
        f"{timing.floor_share:.0%}",
        difference(timing) if timing.is_right else f"{difference(timing)} WRONG",
    )


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def difference(timing: "KernelTiming") -> str:
    return "not comparable" if timing.max_difference is None else f"{timing.max_difference:.1e}"
