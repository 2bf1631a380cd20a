"""The browser page: files of the package that are read when the server starts."""

import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response

from forerun.server.protocols.errors import ApiError

FOLDER: Final = Path(__file__).resolve().parents[1] / "page"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS: Final = {".js": "text/javascript", ".svg": "image/svg+xml", ".webmanifest": "application/manifest+json"}


def page_router() -> APIRouter:
    """Routes for the page's files. All are read in advance; a request's path is only looked up in a dictionary."""
    router = APIRouter(include_in_schema=False)
    files = read_files(FOLDER)

    @router.get("/")
    async def show_page() -> Response:
        return answer(files, "index.html")

    @router.get("/page/{name:path}")
    async def show_file(name: str) -> Response:
        return answer(files, name)

    return router


def read_files(folder: Path) -> Mapping[str, bytes]:
    """Contents of the files by their path relative to the folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith((".", "__"))]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def answer(files: Mapping[str, bytes], name: str) -> Response:
    if name not in files:
        raise ApiError(404, "There is no such page.", code="not_found")
    suffix = Path(name).suffix
    kind = KINDS.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
    return Response(files[name], media_type=kind, headers=headers)
