"""Every example runs on the built-in pair, and stays short."""

import io
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.server.serving import Served, served

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CLIENTS = sorted((ROOT / "examples" / "clients").glob("*.py"))
PAIR = ROOT / "src" / "forerun" / "assets" / "target" / "model.safetensors"
MAX_LINES = 40
TYPED = {"chat.py": "def is_even(number):\n/quit\n"}
ALONE = ("parallel.py",)  # it starts processes, which import it anew


@pytest.mark.parametrize("path", EXAMPLES + CLIENTS, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_LINES


@pytest.mark.skipif(not PAIR.exists(), reason="the built-in pair is not there")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.name in ALONE else (), id=path.name) for path in EXAMPLES],
)
def test_an_example_runs_and_says_something(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(said_alone(path) if path.name in ALONE else said_by(path, capsys, monkeypatch)) > 20


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.mark.skipif(not PAIR.exists(), reason="the built-in pair is not there")
@pytest.mark.parametrize("path", CLIENTS, ids=lambda path: path.name)
def test_a_client_s_example_asks_a_server(
    path: Path, server: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "langchain_openai" if "langchain" in path.name else "openai"
    if find_spec(package) is None:
        pytest.skip(f"{package} is not there")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("FORERUN_MODEL", server.service.model_name)
    said = said_by(path, capsys, monkeypatch)
    assert "same text: False" not in said
    assert len(said) > 20


def said_by(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What an example prints, run in this process, where all that it imports is there already."""
    monkeypatch.setattr("sys.stdin", io.StringIO(TYPED.get(path.name, "")))
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out.strip()


def said_alone(path: Path) -> str:
    """What an example prints, run as a user runs it."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()
