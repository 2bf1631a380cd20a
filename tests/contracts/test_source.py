"""What no source file may do or be: run pickled data, grow without end, speak to the terminal from the inside."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "forerun"
ROOT = SOURCE.parents[1]
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50

# Modules whose reading side runs code found in the data.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
# Calls that unpickle behind a harmless name, or run text as code.
FORBIDDEN_CALLS = {
    "torch.load",
    "torch.jit.load",
    "numpy.load",
    "np.load",
    "eval",
    "exec",
    "multiprocessing.Queue",
    "multiprocessing.Pipe",
}
FORBIDDEN_METHODS = {
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of names, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (stem := dotted(node.value)):
        return f"{stem}.{node.attr}"
    return ""


def imported(node: ast.AST) -> set[str]:
    """Top-level packages an import statement names."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module.split(".")[0]}
    return set()


def offences(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        found += [f"line {node.lineno}: imports {name}" for name in imported(node) & FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS or name.rpartition(".")[2] in FORBIDDEN_METHODS:
                found.append(f"line {node.lineno}: calls {name}")
    return found


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def folder(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


FLOORS = {"jinja2": (3, 1, 6), "starlette": (1, 0, 1), "h11": (0, 16)}  # earlier ones have known holes


def test_no_requirement_allows_a_version_with_a_known_hole() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    asked = [
        found.groups() for group in groups for line in group if (found := re.match(r"([a-z0-9-]+)>=([\d.]+)", line))
    ]
    lowest = [(name, tuple(map(int, version.split(".")))) for name, version in asked if name in FLOORS]
    assert {name for name, _ in lowest} == set(FLOORS)
    assert [(name, version) for name, version in lowest if version < FLOORS[name]] == []


def test_there_is_source_to_check() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_reads_pickles_or_runs_text(path: Path) -> None:
    assert offences(parse(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from dill import loads",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "d.all_gather_object([], 1)",
    ],
)
def test_the_pickle_scan_sees_what_it_is_for(text: str) -> None:
    assert len(offences(ast.parse(text))) == 1


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_file_is_too_long(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE_LINES, f"{num_lines} lines: split it by what its parts are about"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_function_is_too_long(path: Path) -> None:
    functions = [node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = {
        node.name: length
        for node in functions
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_no_class_name_is_used_twice() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(relative(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parse(path)), "a module starts with a docstring"


@pytest.mark.parametrize("path", [path for path in FILES if folder(path) == "checkpoints"], ids=relative)
def test_no_check_of_foreign_data_is_an_assert(path: Path) -> None:
    """`python -O` removes asserts, so code that reads foreign files must raise instead."""
    assert [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("path", [path for path in FILES if folder(path) != "cli"], ids=relative)
def test_the_environment_is_read_at_the_edge_only(path: Path) -> None:
    if relative(path) == "core/places.py":
        pytest.skip("a short name leads the API to the model that the command fetched, so both look where it says")
    nodes = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Name | ast.Attribute)]
    assert [node.lineno for node in nodes if dotted(node) in {"os.environ", "os.getenv"}] == []
