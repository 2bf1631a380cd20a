"""Pages of docs whose second half is written from the code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def table_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a page's tables, by the heads of their columns; `heading` is the heading above the table."""
    heading = ""
    head: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        cells = [cell.strip() for cell in line.strip("| ").split("|")] if line.startswith("|") else []
        if cells and head and line.strip("|-: "):
            yield {**dict(zip(head, cells, strict=False)), "heading": heading}
        head = head or cells if cells else []


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPage:
    """A page of docs, and what stands behind its mark.

    Args:
        module: of tests/contracts, which writes it when it is run.
    """

    name: str
    module: str
    reference: Callable[[], str]

    @property
    def mark(self) -> str:
        return f"<!-- From here on written by tests/contracts/{self.module}.py. -->\n"

    def require_up_to_date(self) -> None:
        _, _, written = (DOCS / self.name).read_text(encoding="utf-8").partition(self.mark)
        assert written.strip() == self.reference().strip(), (
            f"bring it up to date: python -m tests.contracts.{self.module}"
        )

    def write(self) -> None:
        head, _, _ = (DOCS / self.name).read_text(encoding="utf-8").partition(self.mark)
        (DOCS / self.name).write_text(f"{head}{self.mark}\n{self.reference()}", encoding="utf-8")
