"""forerun bench: measure, report, compare."""

import typer

from forerun.cli.bench_kernels import kernels
from forerun.cli.bench_report import compare, report
from forerun.cli.bench_run import run
from forerun.cli.bench_trace import trace

bench = typer.Typer(
    name="bench",
    help="Measure drafters and other engines side by side, and report what was found.",
    no_args_is_help=True,
)
bench.command()(run)
bench.command()(report)
bench.command()(compare)
bench.command()(kernels)
bench.command()(trace)
