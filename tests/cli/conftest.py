"""Commands run in this process or in one of their own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from forerun.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Result]
RunProcess = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Typer makes all commands anew for each run in this process, which takes longer than most of them run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command), raising=False)
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process."""
    for name in [name for name in os.environ if name.startswith("FORERUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FORERUN_DEVICE", "cpu")  # also where there is a GPU

    def call(*arguments: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=typed)

    return call


def command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-W", "error", "-m", "forerun", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This process's, without flags of forerun, with one thread and the source on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    places = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "FORERUN_DEVICE": "cpu"} | changes


@pytest.fixture(scope="session")
def run_process() -> RunProcess:
    """Run a command as a user does."""

    def call(*arguments: str, typed: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=environment(**changes), input=typed, capture_output=True, text=True
        )

    return call
