"""forerun bench kernels: the time of each op in a model's passes."""

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.failures import find_model
from forerun.cli.flags import option, with_flags_of, with_options
from forerun.cli.options import SHOWN, engine_config
from forerun.cli.progress import progress
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, require

if TYPE_CHECKING:
    from forerun_lab.bench.records.kernel_costs import KernelCosts
    from forerun_lab.bench.report.kernel_tables import KernelTable

WIDTH: Final = 110  # columns of a table if stdout is not a terminal


@with_flags_of(EngineConfig, panel=None, only=("dtype", "weights", "num_threads"), shown=SHOWN)
class KernelOptions:
    """The model's dtype, weight format and number of threads."""


@with_options(KernelOptions)
def kernels(
    options: KernelOptions,
    model: Annotated[str, typer.Argument(help="Short name, checkpoint folder, GGUF file or hub name.")],
    rows: Annotated[str, option("--rows", help="Rows of the measured passes, separated by commas.")] = "1,2,4,8,16,32",
    # It has no environment variable: FORERUN_PROMPT is a text to continue.
    prompt: Annotated[
        str, typer.Option("--prompt", help="Lengths of the measured prompts in tokens, separated by commas.")
    ] = "128",
    tier: Annotated[str | None, option("--tier", help="Instruction set, such as avx2 [the best one].")] = None,
    budget_s: Annotated[float, option("--budget", help="Start no further repeat after this many seconds.")] = 20.0,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
    as_markdown: Annotated[bool, option("--markdown", help="Print the tables as Markdown.")] = False,
) -> None:
    """Measure each op of a model's passes on the CPU: time, bytes read, and distance to memory and compute limits."""
    require(not (as_json and as_markdown), "--json and --markdown cannot be used together: leave out one")
    row_counts = read_numbers(rows, "--rows")
    prompts = read_numbers(prompt, "--prompt")
    config = engine_config(options, target=model)
    find_model(model)
    from forerun_lab.bench.run.kernels import KernelRequest, measure_kernels  # imports torch

    request = KernelRequest(config=config, tier=tier, rows=row_counts, prompts=prompts, budget_s=budget_s)
    with progress("measuring") as show:
        costs = measure_kernels(request, show)
    if as_json:
        print(json.dumps(costs.to_dict()))
    else:
        _show(costs, as_markdown=as_markdown)


def read_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, sorted and without duplicates."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise ConfigError(f"{flag} {text!r} must be whole numbers separated by commas, such as 1,8") from None


def _show(costs: "KernelCosts", *, as_markdown: bool) -> None:
    from forerun_lab.bench.report import kernel_tables

    for line in kernel_tables.about(costs):
        print(f"* {line}" if as_markdown else line)
    for table in kernel_tables.tables(costs):
        if as_markdown:
            print(f"\n{table.title}:\n\n{kernel_tables.as_markdown(table)}")
        else:
            _draw(table)


def _draw(table: "KernelTable") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for number, head in enumerate(table.heads):
        drawn.add_column(head, justify="left" if number < table.num_labels else "right", no_wrap=True)
    for line in table.lines:
        drawn.add_row(*map(Text, line), style="bold" if line[0] == "pass" else None)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(Text(f"\n{table.title}", style="bold cyan"))
    console.print(drawn)
