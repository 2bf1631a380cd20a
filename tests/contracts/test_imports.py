"""Who may import whom, and what importing costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from forerun.backends.cpu.binding import fault
from forerun.cli.help_text import first_sentence
from forerun.cli.lab import LAB_COMMANDS, LabCommand

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "transformers")
LAB = "forerun_lab"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def heavy_modules_after(code: str) -> set[str]:
    """The heavy packages, and the lab, that a fresh interpreter holds once it has run `code`."""
    report = "import sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    finished = run_python(f"{code}\n{report}")
    assert finished.returncode == 0, finished.stderr
    loaded = finished.stdout.split("LOADED")[-1].split()
    return set(loaded).intersection((*HEAVY, LAB))


def test_every_import_contract_is_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    finished = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_importing_forerun_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import forerun") == set()


def modules_of(*words: str, code: int = 0, **variables: str) -> set[str]:
    """The heavy packages, and the lab, that a command loads until it ends, with this code."""
    return heavy_modules_after(
        "import os, sys\n"
        f"os.environ |= {variables}\n"
        "from forerun.cli.main import main\n"
        f"sys.argv = ['forerun', *{words}]\n"
        "try:\n    main()\n"
        f"except SystemExit as end:\n    assert (end.code or 0) == {code}, end.code"
    )


def test_help_loads_nothing_heavy() -> None:
    assert modules_of("--help") == set()


def test_a_command_that_serves_loads_nothing_of_the_lab() -> None:
    assert LAB not in modules_of("generate", "builtin", "-p", "x", "-n", "1", FORERUN_THREADS="1")
    assert LAB in modules_of("plan", "--help")


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_the_line_of_a_command_of_the_lab_is_the_first_sentence_of_its_help(name: str) -> None:
    line, module = LAB_COMMANDS[name]
    assert " ".join(first_sentence(LabCommand(name, line, module).help).split()) == line


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("help", "chat"), 0),
        (("version",), 0),
        (("models",), 0),
        (("inspect", "builtin-dflash"), 0),
        (("check", "builtin", "builtin-dflash"), 0),
        (("run", "/no/such/model.gguf", "hi"), 5),
        (("generate", "builtin", "-p", "x", "--drafter", "nobody"), 2),
        pytest.param(
            ("inspect", "builtin"), 0, marks=pytest.mark.skipif(fault() is not None, reason="torch is asked instead")
        ),
    ],
    ids=str,
)
def test_what_needs_no_torch_loads_none(words: tuple[str, ...], code: int) -> None:
    assert "torch" not in modules_of(*words, code=code)


def test_help_names_the_commands() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "forerun", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert "generate" in finished.stdout


@pytest.mark.parametrize("module", ["forerun.core.config", "forerun.core.steps", "forerun.core.errors"])
def test_the_nouns_load_nothing_heavy(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == set()
