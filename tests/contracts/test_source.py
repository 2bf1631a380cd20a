"""What no source file may do or be: run pickled data, grow without end, speak to the terminal from the inside."""

import ast
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
SCRIPTS = ("forerun_lab/checks", "forerun_lab/training")  # not in a wheel: each of their modules stands for itself
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.relative_to(SOURCE).as_posix().startswith(SCRIPTS))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py"))

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


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


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


def offences(path: Path) -> list[str]:
    found = []
    for node in nodes_of(path):
        found += [f"line {node.lineno}: imports {name}" for name in imported(node) & FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS or name.rpartition(".")[2] in FORBIDDEN_METHODS:
                found.append(f"line {node.lineno}: calls {name}")
    return found


def relative(path: Path) -> str:
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else SOURCE.parent).as_posix()


def folder(path: Path) -> str:
    return "/".join(path.relative_to(SOURCE).parts[:2])


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


def test_nothing_reads_pickles_or_runs_text() -> None:
    assert found_in(FILES, offences) == {}


# Modules that start processes. The engine's own are workers on a wire, or bounded children; the lab has its own ways.
STARTERS = {
    "forerun/wires/children.py": "a worker on a wire",
    "forerun/wires/forkserver.py": "a worker on a wire, forked from a process that has loaded its model",
    "forerun/wires/bounded_child.py": "a bounded child for one question",
    "forerun/fleet/ranks.py": "a rank of another machine",
    "forerun/checkpoints/short_names/fetch.py": "pip",
}
STARTING = {"subprocess.Popen", "subprocess.run", "os.fork", "os.posix_spawn", "os.system", "multiprocessing.Process"}


def test_processes_are_started_in_few_places() -> None:
    def starts(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func) in STARTING

    engine = [path for path in FILES if relative(path).startswith("forerun/")]
    assert found_in(engine, lambda path: lines_of(path, starts)).keys() == STARTERS.keys()


def test_no_statement_packs_assignments() -> None:
    """`a, b = x, y` is written as two statements, unless one of the values reads a target, as in a swap."""
    assert found_in([*FILES, *TESTS], lambda path: lines_of(path, packs)) == {}


def packs(node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ):
        return False
    targets = {ast.unparse(target) for target in node.targets[0].elts}
    is_literal = len(node.targets[0].elts) == len(node.value.elts)
    plain = not any(isinstance(part, ast.Starred) for part in (*node.targets[0].elts, *node.value.elts))
    values = [part for value in node.value.elts for part in ast.walk(value) if isinstance(part, ast.expr)]
    has_lambda = any(isinstance(value, ast.Lambda) for value in node.value.elts)
    return is_literal and plain and not has_lambda and not targets & {ast.unparse(part) for part in values}


def test_no_class_name_is_used_twice() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(relative(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_every_module_says_what_it_is() -> None:
    """A module starts with a docstring."""
    assert [relative(path) for path in FILES if not ast.get_docstring(parse(path))] == []


def test_no_check_of_foreign_data_is_an_assert() -> None:
    """`python -O` removes asserts, so code that reads foreign files must raise instead."""
    readers = [path for path in FILES if folder(path) == "forerun/checkpoints"]
    assert len(readers) > 10
    assert found_in(readers, lambda path: lines_of(path, lambda node: isinstance(node, ast.Assert))) == {}


def test_the_environment_is_read_at_the_edge_only() -> None:
    """But for a short name, which leads the API to the model that the command fetched: both look where it says."""
    inner = [path for path in FILES if not folder(path).endswith("/cli") and relative(path) != "forerun/core/paths.py"]
    assert found_in(inner, lambda path: lines_of(path, reads_environment)) == {}


def reads_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and dotted(node) in {"os.environ", "os.getenv"}


def lines_of(path: Path, is_meant: Callable[[ast.AST], bool]) -> list[str]:
    return [f"line {getattr(node, 'lineno', 0)}" for node in nodes_of(path) if is_meant(node)]


def found_in(paths: list[Path], find: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What was found, by file, where there was anything."""
    return {relative(path): found for path in paths if (found := find(path))}
