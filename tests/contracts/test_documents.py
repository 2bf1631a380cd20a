"""What the documents show must be true: snippets compile, links lead somewhere, the tree is the tree."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CHECKED = [path for path in DOCUMENTS if path.name != "log.md"]  # the log tells of what is no more
PATH = r"(?:[\w-]+/)+[\w.-]*"
NOT_WRITTEN_OUT = {  # names of other programs, a pattern, and names that are joined when the program runs
    "skip_layers", "trust_remote_code", "RAY_USE_TLS", "namespace__name",
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
}  # fmt: skip
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)]*)?\)")
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
    links = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in link[0]]
    assert [(file, anchor) for file, anchor in links if not leads_somewhere(path, file, anchor)] == []


def leads_somewhere(path: Path, file: str, anchor: str) -> bool:
    target = path.parent / file if file else path
    return target.exists() and (target.suffix != ".md" or not anchor or anchor[1:] in headings(target))


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


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


def test_every_class_that_the_architecture_page_names_is_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", page))
    assert len(named) > 10
    assert {name for name in named if not re.search(rf"^(class {name}\b|{name}: TypeAlias)", source, re.M)} == set()


@pytest.mark.parametrize("path", CHECKED, ids=relative)
def test_a_file_or_folder_in_backticks_exists(path: Path) -> None:
    assert [name for name in quoted(path) if re.fullmatch(PATH, name) and is_ours(name) and not found(name)] == []


@pytest.mark.parametrize("path", [path for path in CHECKED if path.name != "clients.md"], ids=relative)
def test_an_identifier_in_backticks_occurs_in_the_code(path: Path) -> None:
    """Compound names: `snake_case`, `CamelCase`, `CAPITALS` with an underscore, and the parts of `Class.field`."""
    names = {part for name in quoted(path) if re.fullmatch(r"\w+(\.\w+)?", name) for part in name.split(".")}
    compound = {name for name in names if re.fullmatch(r"[a-z]\w*_\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*|[A-Z]+_[A-Z_]+", name)}
    unknown = {name for name in compound - NOT_WRITTEN_OUT if name.removesuffix("_total") not in words_of_the_code()}
    assert sorted(unknown) == []  # Prometheus appends "_total" to the names of counters


def test_a_name_is_in_the_file_that_a_document_gives_for_it() -> None:
    claims = [
        (relative(path), *claim)
        for path in CHECKED
        for claim in re.findall(
            r"`(\w+)`,?\s+(?:of|in)\s+`((?:[\w-]+/)+[\w.-]+\.\w+)`", path.read_text(encoding="utf-8")
        )
    ]
    assert len(claims) > 10
    assert [
        claim
        for claim in claims
        if not any(re.search(rf"\b{claim[1]}\b", file.read_text()) for file in found(claim[2]))
    ] == []


def quoted(path: Path) -> set[str]:
    """What stands in backticks, without blocks of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", text))


def is_ours(path: str) -> bool:
    """Whether a path begins with a folder of the repository; others are names of models, routes and the like."""
    return any((ROOT / place).is_dir() for place in places().get(path.split("/")[0], ()))


def found(path: str) -> list[Path]:
    """Files and folders whose path ends with this one; a module may be named without its ending."""
    return [ROOT / place for place in sorted(places().get(path.rstrip("/"), ()))]


@cache
def places() -> dict[str, set[str]]:
    """The files and folders of the repository by every end of their paths."""
    ends: dict[str, set[str]] = {}
    for file in repository():
        for place in (Path(file), *Path(file).parents[:-1]):
            for start in range(len(place.parts)):
                end = Path(*place.parts[start:])
                for name in (end, end.with_suffix("")):
                    ends.setdefault(name.as_posix(), set()).add(place.as_posix())
    return ends


@cache
def repository() -> list[str]:
    folders = ("src", "tests", "scripts", "benchmarks", "examples", "deploy", "docs", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return [relative(path) for path in [*files, ROOT / "pyproject.toml"] if path.is_file()]


@cache
def words_of_the_code() -> frozenset[str]:
    endings = (".py", ".toml", ".h", ".cpp", ".js", ".txt", ".yml", ".yaml", ".jinja")
    written = [file for file in repository() if file.endswith(endings) or file.startswith("deploy/")]
    files = [ROOT / file for file in written if file != relative(Path(__file__))]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    return frozenset(words | {Path(file).name.split(".")[0] for file in repository()})


def test_every_result_is_cited_by_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *(ROOT / "src").rglob("*.md")])
    results = {path.stem for path in (ROOT / "benchmarks" / "results").iterdir()}
    assert {stem for stem in results if f"/{stem}.md" not in pages} == set()


def test_every_decision_has_the_four_parts() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        headings = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Choice", "Cost", "What would change our mind"], path.name
