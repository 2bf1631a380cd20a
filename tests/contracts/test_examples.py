"""Every example runs as a user would run it, on the built-in pair, and stays short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAIR = ROOT / "src" / "forerun" / "assets" / "target" / "model.safetensors"
MAX_LINES = 40
TYPED = {"chat.py": "def is_even(number):\n/quit\n"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_LINES


@pytest.mark.skipif(not PAIR.exists(), reason="the built-in pair is not there")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_says_something(path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        input=TYPED.get(path.name, ""),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stdout.strip()) > 20, finished.stdout
