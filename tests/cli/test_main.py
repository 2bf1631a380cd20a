"""Help, version and mistyped commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from forerun import __version__
from tests.cli.conftest import ROOT, Run, RunProcess


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_the_version_is_told(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).stdout.startswith(f"forerun {__version__} (Python {sys.version_info.major}.")


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


def test_help_of_the_program_imports_no_rich_text(run_process: RunProcess) -> None:
    finished = run_process("--help", PYTHONPROFILEIMPORTTIME="1")
    assert "generate" in finished.stdout
    assert "typer" in finished.stderr
    assert "rich.console" not in finished.stderr


def test_ctrl_c_before_anything_is_there_ends_quietly(run_process: RunProcess, tmp_path: Path) -> None:
    """While imports take their quarter of a second."""
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    finished = run_process("--help", PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    assert (finished.returncode, finished.stderr) == (130, "")


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on addresses as Linux has it")
@pytest.mark.parametrize("num_mib", [500, 1000, 1100])
def test_too_little_memory_is_said_in_one_line(num_mib: int) -> None:
    limit = f"ulimit -v {num_mib * 1024}; exec {sys.executable} -m forerun run smollm2-draft hi -n 2"
    finished = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False)
    assert finished.returncode in (1, 2, 3)
    assert "Traceback" not in finished.stderr
    assert len([line for line in finished.stderr.splitlines() if "error: " in line]) == 1
