"""Help, version and mistyped commands."""

from pathlib import Path

import pytest
import typer

from forerun.cli.failures import MORE_MEMORY, shows_errors
from tests.cli.conftest import ROOT, Run, RunProcess


def test_a_mistyped_command_is_answered_with_the_nearest(run: Run) -> None:
    shown = run("genrate")
    assert shown.exit_code == 2
    assert "generate" in shown.stderr


@pytest.mark.parametrize("command", ["generate", "chat", "run", "inspect", "check", "worker"])
def test_every_command_has_help(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert "--" in shown.stdout
    assert run("help", command).stdout == shown.stdout


def test_ctrl_c_before_anything_is_there_ends_quietly(run_process: RunProcess, tmp_path: Path) -> None:
    """While imports take their quarter of a second."""
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    finished = run_process("--help", PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    assert (finished.returncode, finished.stderr) == (130, "")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(12, "Cannot allocate memory"), ImportError("libtorch_cpu.so: failed to map segment")],
)
def test_too_little_memory_is_said_in_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    @shows_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit):
        command()
    assert capsys.readouterr().err.endswith(f"{MORE_MEMORY}, or take a smaller model\n") or isinstance(
        error, ImportError
    )


def test_a_package_that_is_not_there_is_a_fault_with_its_traceback() -> None:
    @shows_errors
    def command() -> None:
        raise ImportError("No module named x")

    with pytest.raises(ImportError):
        command()
