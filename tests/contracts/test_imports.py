"""Who may import whom, and what importing costs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "transformers")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def heavy_modules_after(code: str) -> set[str]:
    """The heavy packages a fresh interpreter holds once it has run `code`."""
    report = "import sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    finished = run_python(f"{code}\n{report}")
    assert finished.returncode == 0, finished.stderr
    loaded = finished.stdout.split("LOADED")[-1].split()
    return set(loaded).intersection(HEAVY)


def test_every_import_contract_is_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    finished = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_importing_forerun_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import forerun") == set()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from forerun.cli.main import main\n"
        "sys.argv = ['forerun', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code"
    )
    assert heavy_modules_after(code) == set()


def test_help_names_the_commands() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "forerun", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert "generate" in finished.stdout


@pytest.mark.parametrize("module", ["forerun.core.config", "forerun.core.steps", "forerun.core.errors"])
def test_the_nouns_load_nothing_heavy(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == set()
