"""The training text: Python source that any machine has, and plain English of clear licence."""

import gzip
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

# Packages read beside the standard library (PSF-2.0), with the licence each one states.
PACKAGES = {
    "torch": "BSD-3-Clause",
    "transformers": "Apache-2.0",
    "sympy": "BSD-3-Clause",
    "networkx": "BSD-3-Clause",
    "numpy": "BSD-3-Clause",
    "huggingface_hub": "Apache-2.0",
    "fsspec": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "click": "BSD-3-Clause",
    "rich": "MIT",
    "typer": "MIT",
    "pip": "MIT",
    "setuptools": "MIT",
}
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__"}
SKIPPED_FOLDERS |= {"_vendor", "models", "testing", "_numeric_suite", "pydoc_data", "turtledemo", "legacy"}
MAX_FILE_BYTES = 120_000
HELD_OUT_SHARE = 40  # one file in so many is never trained on


@dataclass(frozen=True, kw_only=True)
class Document:
    """One file of text.

    `name` is stable across machines (package and path inside it), so the held-out split is too.
    """

    name: str
    text: str

    @property
    def is_held_out(self) -> bool:
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def package_folder(package: str) -> Path | None:
    """Folder of an installed package, or None when it is absent."""
    spec = util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def python_documents() -> Iterator[Document]:
    """Every usable source file of the standard library and of `PACKAGES`."""
    roots = [("stdlib", Path(sysconfig.get_path("stdlib")))]
    roots += [(name, folder) for name in PACKAGES if (folder := package_folder(name))]
    for package, root in roots:
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root)
            if SKIPPED_FOLDERS.intersection(relative.parts[:-1]) or path.stat().st_size > MAX_FILE_BYTES:
                continue
            text = path.read_text(encoding="utf-8", errors="ignore")
            if len(text) > 400:
                yield Document(name=f"{package}/{relative}", text=text)


def prose_documents(folder: Path, chunk_chars: int = 20_000) -> Iterator[Document]:
    """Plain text files (.txt or .txt.gz) below `folder`, cut at paragraph ends into pieces."""
    for path in sorted([*folder.rglob("*.txt"), *folder.rglob("*.txt.gz")]):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        piece: list[str] = []
        count = 0
        for paragraph in data.decode("utf-8", errors="ignore").split("\n\n"):
            piece.append(paragraph.strip())
            if sum(map(len, piece)) > chunk_chars:
                yield Document(name=f"{path.name}#{count}", text="\n\n".join(piece))
                piece = []
                count = count + 1
        yield Document(name=f"{path.name}#{count}", text="\n\n".join(piece))
