"""What messages and documents say about installing works in a clone, with the versions of pyproject.toml."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from forerun.core.optional_packages import REQUIREMENTS, install_command

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
HOME = SOURCE / "forerun" / "core" / "optional_packages.py"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"] | PYPROJECT["dependency-groups"]
OFFERED = {requirement for extra in EXTRAS.values() for requirement in extra}
ELSEWHERE = {"docs/installing.md", "docs/log.md"}  # another environment is meant, and what was measured once
COMMANDS = {"docs/commands.md"}  # says at its top how the command is called
DOCUMENTS = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")])
    if path.relative_to(ROOT).as_posix() not in ELSEWHERE
]
INSTALLS = re.compile(r"([\w./-]*\bpip) install (?:'([^']+)')?")  # the program and a quoted requirement


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_program_names_packages_through_one_function() -> None:
    """Its argument is a name of the table, and every name of the table is used."""
    asked = list[str]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install_command":
                asked.append(ast.literal_eval(node.args[0]))
    assert set(asked) == set(REQUIREMENTS)


def test_no_other_file_of_the_program_tells_how_to_install_something() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != HOME]
    assert [name(path) for path in files if "pip install" in path.read_text(encoding="utf-8")] == []


def test_the_versions_are_those_of_the_extras() -> None:
    assert set(REQUIREMENTS.values()) <= OFFERED


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_a_document_installs_into_the_environment_of_the_clone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"forerun\[\w+\]", text) == [], "forerun is on no index"
    assert {pip for pip, _ in INSTALLS.findall(text)} <= {".venv/bin/pip"}
    assert {requirement for _, requirement in INSTALLS.findall(text) if requirement} <= OFFERED


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.suffix == ".md"], ids=name)
def test_a_document_starts_the_program_as_it_lies_in_the_clone(path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("forerun ")]
    assert name(path) in COMMANDS or lines == []


def test_the_command_is_one_of_the_program_s_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr("sys.base_prefix", "/usr")
    monkeypatch.chdir(tmp_path)
    assert install_command("ray") == ".venv/bin/pip install 'ray[serve]>=2.59'"
    monkeypatch.chdir("/proc")
    assert install_command("ray") == f"{tmp_path}/.venv/bin/python -m pip install 'ray[serve]>=2.59'"
    monkeypatch.chdir("/")
    monkeypatch.setattr("sys.prefix", "/usr")
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert install_command("triton") == "/usr/bin/python3 -m pip install 'triton>=3.6'"
