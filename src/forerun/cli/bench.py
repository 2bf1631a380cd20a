"""forerun bench: measure, report, compare."""

import typer

from forerun.cli.bench_kernels import kernels
from forerun.cli.bench_report import compare, report
from forerun.cli.bench_run import run
from forerun.cli.bench_trace import trace
from forerun.cli.plain import PlainGroup, add_command

bench = typer.Typer(
    name="bench",
    cls=PlainGroup,
    help="Measure drafters and other engines side by side, and report the results.",
    no_args_is_help=True,
)
for command in (run, report, compare, trace, kernels):
    add_command(bench, command)
