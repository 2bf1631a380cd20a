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
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


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
    finished = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_importing_forerun_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import forerun") == set()


# Commands that load no torch, and the code with which each ends.
LIGHT = {
    ("help", "chat"): 0,
    ("version",): 0,
    ("models",): 0,
    ("inspect", "builtin-dflash"): 0,
    ("check", "builtin", "builtin-dflash"): 0,
    ("run", "/no/such/model.gguf", "hi"): 5,
    ("generate", "builtin", "-p", "x", "--drafter", "nobody"): 2,
    ("inspect", "builtin"): 0,
}
GENERATE = ("generate", "builtin", "-p", "x", "-n", "1", "--threads", "1")
COMMANDS = LIGHT | {("--help",): 0, ("plan", "--help"): 0, GENERATE: 0}
IN_FORKS = """
import os, sys
from forerun.cli.main import main
for words, code in {commands}:
    sys.stdout.flush()
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, words
        continue
    sys.argv = ["forerun", *words]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == code, (words, end.code)
    print("LOADED", *{{name.split(".")[0] for name in sys.modules}}, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, ...], set[str]]:
    """The heavy packages, and the lab, that each command loads, in forks of a process that reads the command line."""
    finished = run_python(IN_FORKS.format(commands=[*COMMANDS.items()]))
    assert finished.returncode == 0, finished.stderr
    found = [set(line.split()) for line in finished.stdout.splitlines() if line.startswith("LOADED ")]
    return {words: names.intersection((*HEAVY, LAB)) for words, names in zip(COMMANDS, found, strict=True)}


def test_help_loads_nothing_heavy(loaded: dict[tuple[str, ...], set[str]]) -> None:
    assert loaded["--help",] == set()


def test_a_command_that_serves_loads_nothing_of_the_lab(loaded: dict[tuple[str, ...], set[str]]) -> None:
    assert LAB not in loaded[GENERATE]
    assert "torch" in loaded[GENERATE]
    assert LAB in loaded["plan", "--help"]


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_the_line_of_a_command_of_the_lab_is_the_first_sentence_of_its_help(name: str) -> None:
    line, module = LAB_COMMANDS[name]
    assert " ".join(first_sentence(LabCommand(name, line, module).help).split()) == line


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_what_needs_no_torch_loads_none(loaded: dict[tuple[str, ...], set[str]], words: tuple[str, ...]) -> None:
    if words == ("inspect", "builtin") and fault() is not None:
        pytest.skip("torch is asked instead")
    assert "torch" not in loaded[words]


def test_help_names_the_commands() -> None:
    finished = subprocess.run([sys.executable, "-m", "forerun", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "generate" in finished.stdout


@pytest.mark.parametrize("module", ["forerun.core.config", "forerun.core.steps", "forerun.core.errors"])
def test_the_nouns_load_nothing_heavy(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == set()
