"""The page's files as they lie in the package: complete, and nothing from elsewhere. A browser shows them in `page`."""

import hashlib
import re

import pytest

pytest.importorskip("fastapi")

from forerun.server.protocols.errors import ApiError
from forerun.server.routes.page import FOLDER, answer, read_files

FILES = read_files(FOLDER)
OWN = [name for name in FILES if not name.startswith("vendor/")]
SCRIPTS = [name for name in OWN if name.endswith(".js")]
LIBRARIES = [name for name in FILES if name.startswith("vendor/") and name.endswith(".js")]
OWN_NAMES = ("http://www.w3.org/",)  # names of languages, which nothing is loaded from


def test_every_file_is_part_of_the_page_and_none_is_missing() -> None:
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', FILES["index.html"].decode()))
    for script in SCRIPTS:
        named |= set(re.findall(r'(?:from|import|import\() ?"\./([^"]+)"', FILES[script].decode()))
        named |= set(re.findall(r'new URL\("([^"]+)", import\.meta\.url\)', FILES[script].decode()))
    assert named | {"index.html"} == {*OWN, *LIBRARIES}


def test_libraries_of_others_are_as_published_and_each_has_its_licence_and_version() -> None:
    sums = dict(reversed(line.split("  ")) for line in FILES["vendor/SHA256SUMS"].decode().splitlines())
    lying = {name.removeprefix("vendor/") for name in FILES if name.startswith("vendor/")}
    assert lying == {*sums, "SHA256SUMS", "README.md"}
    for name, checksum in sums.items():
        assert hashlib.sha256(FILES[f"vendor/{name}"]).hexdigest() == checksum, name
    for library in LIBRARIES:
        name = library.removeprefix("vendor/")
        assert f"{name.split('.')[0]}.LICENSE" in sums
        assert re.search(rf"^\| `{re.escape(name)}` \| \S+ \d+\.\d+", FILES["vendor/README.md"].decode(), re.MULTILINE)


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = FILES[name].decode()
    addresses = [found for found in re.findall(r"https?://\w[^\s\"')]*", text) if not found.startswith(OWN_NAMES)]
    assert addresses == []
    assert "innerHTML" not in text
    assert "@import" not in text


def test_every_element_that_a_script_looks_for_is_there() -> None:
    html = FILES["index.html"].decode()
    made = set(re.findall(r'\bid: "([\w-]+)"', "".join(FILES[name].decode() for name in SCRIPTS)))
    wanted = {found for name in SCRIPTS for found in re.findall(r'byId\("([\w-]+)"\)', FILES[name].decode())}
    assert wanted <= set(re.findall(r'\bid="([\w-]+)"', html)) | made


def test_the_browser_is_told_to_run_and_load_nothing_else() -> None:
    for name, kind in (("index.html", "text/html"), ("main.js", "text/javascript"), ("theme.css", "text/css")):
        headers = answer(FILES, name).headers
        assert headers["content-type"].startswith(kind)
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")


@pytest.mark.parametrize("name", ["", "nothing.js", "../app.py", "page/index.html", "/etc/passwd"])
def test_only_these_files_are_given(name: str) -> None:
    with pytest.raises(ApiError):
        answer(FILES, name)
