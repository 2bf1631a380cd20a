"""Every example runs as a user would run it, on the built-in pair, and stays short."""

import os
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


@pytest.mark.parametrize("path", EXAMPLES + CLIENTS, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_LINES


@pytest.mark.skipif(not PAIR.exists(), reason="the built-in pair is not there")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_says_something(path: Path) -> None:
    assert len(said_by(path, {})) > 20


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.mark.skipif(not PAIR.exists(), reason="the built-in pair is not there")
@pytest.mark.parametrize("path", CLIENTS, ids=lambda path: path.name)
def test_a_client_s_example_asks_a_server(path: Path, server: Served) -> None:
    package = "langchain_openai" if "langchain" in path.name else "openai"
    if find_spec(package) is None:
        pytest.skip(f"{package} is not there")
    said = said_by(path, {"OPENAI_BASE_URL": f"{server.url}/v1", "FORERUN_MODEL": server.service.model_name})
    assert "same text: False" not in said
    assert len(said) > 20


def said_by(path: Path, variables: dict[str, str]) -> str:
    """What an example prints."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), **variables},
        input=TYPED.get(path.name, ""),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()
