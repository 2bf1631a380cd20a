"""forerun bench: measure, report, compare."""

import typer

from forerun.cli.command_classes import PlainGroup, add_command
from forerun_lab.cli.bench_kernels import kernels
from forerun_lab.cli.bench_paper import paper
from forerun_lab.cli.bench_report import compare, report
from forerun_lab.cli.bench_run import run
from forerun_lab.cli.bench_trace import trace

bench = typer.Typer(
    name="bench",
    cls=PlainGroup,
    help="Measure drafters and other engines side by side, and report the results.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (run, report, compare, paper, trace, kernels):
    add_command(bench, command)
