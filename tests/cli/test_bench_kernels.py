"""The command that measures kernels: its table, its file and its exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from forerun.backends.choose import FUSED
from forerun.bench import kernel_clock
from forerun.bench import kernels as bench
from forerun.bench.kernel_report import KernelPlan, KernelReport
from forerun.cli.bench_kernels import kernels, read_rows
from forerun.core.errors import ConfigError

QUICK = ("--shapes", "builtin-draft", "--rows", "1,2", "--context", "8", "--budget-s", "1000", "--threads", "1")


@pytest.fixture(autouse=True)
def _few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time as little as possible, so that no budget runs out however busy the machine is."""
    monkeypatch.setattr(kernel_clock, "MAX_BLOCKS", kernel_clock.MIN_BLOCKS)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(kernels)
    return CliRunner().invoke(app, list(arguments))


def test_a_run_shows_a_table_and_writes_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "new" / "kernels.json"
    shown = run(*QUICK, "--dtype", "float32", "--json", str(file))
    assert shown.exit_code == 0, shown.output
    assert "builtin-draft, float32" in shown.stdout
    assert "linear: attention_out + residual" in shown.stdout
    assert "ceilings of cpu, 1 threads" in shown.stdout
    report = KernelReport.from_dict(json.loads(file.read_text()))
    assert report.plan.rows == (1, 2)
    assert report.wrong == []


def test_a_wrong_kernel_makes_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = bench.measure_kernels
    broken = replace(FUSED, rotate=lambda x, cos, sin: x)

    def measure_broken(plan: KernelPlan) -> KernelReport:
        return measure(plan, broken)

    monkeypatch.setattr(bench, "measure_kernels", measure_broken)
    shown = run(*QUICK)
    assert shown.exit_code == 1
    assert "WRONG builtin-draft: rotate, q and k, 2 rows" in shown.stdout


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--rows", "1;2"), "1,8,16,32"),
        (("--shapes", "70b"), "builtin-draft"),
        (("--device", "npu"), "choose cpu"),
        (("--json", "."), "cannot be written"),
    ],
)
def test_a_wrong_flag_is_answered_with_what_is_needed(flags: tuple[str, ...], complaint: str) -> None:
    shown = run(*QUICK, *flags)
    assert shown.exit_code == 2
    assert complaint in shown.stderr


def test_rows_are_numbers_between_commas() -> None:
    assert read_rows("1, 8,32") == (1, 8, 32)
    with pytest.raises(ConfigError, match="'8,'"):
        read_rows("8,")
