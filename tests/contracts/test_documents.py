"""What the documents show must be true: snippets compile, links lead somewhere, the tree is the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
SCRIPT = re.compile(r"scripts/\w+")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def snippets() -> list[tuple[str, str]]:
    return [
        (f"{relative(path)}:{number}", code)
        for path in DOCUMENTS
        for number, code in enumerate(SNIPPET.findall(path.read_text(encoding="utf-8")), start=1)
    ]


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in snippets()])
def test_a_python_snippet_compiles(code: str) -> None:
    compile(code, "snippet", "exec")


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in snippets()])
def test_a_python_snippet_uses_public_names_that_exist(code: str) -> None:
    forerun = pytest.importorskip("forerun")
    for names in re.findall(r"^from forerun import (.+)$", code, re.MULTILINE):
        assert {name.strip() for name in names.split(",")} <= set(forerun.__all__)


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_into_the_repository_lead_somewhere(path: Path) -> None:
    targets = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_scripts_the_documents_name_exist(path: Path) -> None:
    named = set(SCRIPT.findall(path.read_text(encoding="utf-8")))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_architecture_page_names_every_folder_and_no_other() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src"
    named = set(re.findall(r"`([a-z_]+)/`", page.partition("## The folders")[2].partition("Beside the packages")[0]))
    folders = {path.parent.name for path in source.rglob("*.py")} - {"forerun", "forerun_lab"} | {"assets", "cpp"}
    assert named == folders


def test_every_module_that_the_architecture_page_names_is_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src"
    folders = {path.name for path in source.glob("*/*") if path.is_dir()}
    paths = re.findall(rf"`((?:{'|'.join(sorted(folders))})/[a-z_/]+)`", page)
    assert len(paths) > 10
    assert [path for path in paths if not list(source.glob(f"*/{path.rstrip('/')}*"))] == []


def test_every_class_that_the_architecture_page_names_is_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", page))
    assert len(named) > 10
    assert {name for name in named if not re.search(rf"^(class {name}\b|{name}: TypeAlias)", source, re.M)} == set()


def test_files_and_names_in_them_that_contributors_are_sent_to_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "forerun"
    cpu = source / "backends" / "cpu"

    def found(path: str) -> list[Path]:
        return [place for place in (ROOT / path, source.parent / path, source / path, cpu / path) if place.exists()]

    paths = re.findall(r"`((?:[\w-]+/)+[\w.-]+\.\w+)`", page)
    assert len(paths) > 20
    assert [path for path in paths if not found(path)] == []
    named = re.findall(r"`(\w+)`,? (?:of|in) `((?:[\w-]+/)+[\w.-]+\.\w+)`", page)
    assert len(named) > 5
    assert [(name, path) for name, path in named if not re.search(rf"\b{name}\b", found(path)[0].read_text())] == []


def test_every_decision_has_the_four_parts() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        headings = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Choice", "Cost", "What would change our mind"], path.name
