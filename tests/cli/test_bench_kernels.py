"""forerun bench kernels."""

import pytest

from forerun.backends.dtypes import runs_native
from forerun_lab.bench.run import kernel_times
from tests.cli.conftest import Run

SHORT = ("bench", "kernels", "builtin", "--rows", "3,1", "--prompt", "7", "--budget", "0", "--threads", "1")
needs_native = pytest.mark.skipif(not runs_native("float32", "cpu"), reason="the native kernels were not built")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_BYTES", "LEAST_READ_BYTES", "MOST_READ_BYTES"):
        monkeypatch.setattr(kernel_times, name, 1 << 16)


@needs_native
def test_tables_show_every_op_of_every_pass(run: Run) -> None:
    shown = run(*SHORT)
    assert shown.exit_code == 0, shown.output
    for title in ("milliseconds", "share of the memory's reading speed", "share of the peak of the instructions"):
        assert title in shown.stdout
    heads = next(line for line in shown.stdout.splitlines() if line.startswith("op "))
    assert heads.split() == ["op", "weights", "MB", "1", "row", "3", "rows", "prompt", "7"]
    assert shown.stdout.count("norm + gate_up + silu_mul") == 3
    assert "left over" in shown.stdout


@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (("--rows", "1,x"), "--rows '1,x' must be whole numbers separated by commas", 2),
        (("--json", "--markdown"), "--json and --markdown cannot be used together", 2),
        (("--rows", "", "--prompt", ""), "there is nothing to measure", 2),
    ],
)
def test_a_faulty_flag_is_named(run: Run, flags: tuple[str, ...], said: str, code: int) -> None:
    shown = run(*SHORT, *flags)
    assert shown.exit_code == code
    assert said in " ".join(shown.stderr.split())


@needs_native
def test_a_model_on_other_kernels_cannot_be_measured(run: Run) -> None:
    shown = run(*SHORT, "--dtype", "float64")
    assert shown.exit_code == 2
    assert "only passes on the native kernels of the CPU are measured op by op" in " ".join(shown.stderr.split())
