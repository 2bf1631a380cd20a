"""One browser for the tests of a module, and a page in it for each test; imported also where no Playwright is."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.server.serving import Served


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from tests.server.page.browsing import opened_browser

    yield from opened_browser()


@pytest.fixture
def page(browser: "Browser", server: "Served") -> Iterator["Page"]:
    from tests.server.page.browsing import pages

    yield from pages(browser, server.url)
