"""The page's files as they lie in the package: complete, and nothing from elsewhere. A browser shows them in `page`."""

import re

import pytest

pytest.importorskip("fastapi")

from forerun.server.protocol.errors import ApiError
from forerun.server.routes.page import FOLDER, answer, read_files

FILES = read_files(FOLDER)
SCRIPTS = [name for name in FILES if name.endswith(".js")]
OWN_NAMES = ("http://www.w3.org/",)  # names of languages, which nothing is loaded from


def test_every_file_is_part_of_the_page_and_none_is_missing() -> None:
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', FILES["index.html"].decode()))
    for script in SCRIPTS:
        named |= set(re.findall(r'(?:from|import\() ?"\./([^"]+)"', FILES[script].decode()))
    assert named | {"index.html"} == set(FILES)


@pytest.mark.parametrize("name", FILES)
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
