"""Thirty ways through the page at three sizes and in two themes; after each axe-core finds nothing and all fits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect

from tests.server.page.browsing import CHROMIUM, PHONE, QUESTION, WIDE, ask, choose, pages, send, whole
from tests.server.page.test_access import imported, unreachable
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]

Walk = Callable[[Page, Path], object]
SIZES = {"phone": (PHONE, 844), "tablet": (820, 1180), "desktop": (WIDE, 800)}
QUICK = {
    ("asks", "phone", "dark"),
    ("files", "phone", "light"),
    ("cut", "tablet", "dark"),
    ("edits", "desktop", "light"),
}


def listed(page: Page) -> None:
    """The list of conversations in sight."""
    if page.locator("#open-sidebar").is_visible():
        page.click("#open-sidebar")
        expect(page.locator("#sidebar")).to_be_visible()


def asked(page: Page, text: str = QUESTION, **settings: str) -> None:
    choose(page, **{"max_tokens": "16", "seed": "3", **settings})
    ask(page, text)


def example(page: Page, _: Path) -> None:
    choose(page, max_tokens="16")
    page.click(".example >> nth=0")
    expect(page.locator(".assistant")).to_have_count(1)
    whole(page)


def asks(page: Page, _: Path) -> None:
    asked(page)
    ask(page, "again")
    expect(page.locator(".message")).to_have_count(4)


def stops(page: Page, _: Path) -> None:
    choose(page, max_tokens="1500")
    send(page, QUESTION)
    expect(page.locator(".assistant .by").first).to_be_visible()
    page.click("#send")
    whole(page)
    expect(page.locator(".note").last).to_have_text("Stopped.")


def cut(page: Page, _: Path) -> None:
    asked(page)
    page.click("[data-action=continue]")
    whole(page)
    expect(page.locator(".assistant .facts")).to_contain_text("32 tokens")


def regenerates(page: Page, _: Path) -> None:
    asked(page)
    page.click("[data-action=regenerate]")
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    whole(page)


def branches(page: Page, folder: Path) -> None:
    regenerates(page, folder)
    page.click("[data-action=before]")
    expect(page.locator(".branches")).to_contain_text("1 / 2")


def edits(page: Page, _: Path) -> None:
    asked(page)
    page.click("[data-action=edit]")
    page.fill(".edit", "class Reader:")
    page.click(".user >> text=Send")
    expect(page.locator(".user .branches")).to_contain_text("2 / 2")
    whole(page)


def copies(page: Page, _: Path) -> None:
    asked(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("[data-action=copy]").first.click()
    expect(page.locator("[data-action=copy]").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == QUESTION


def marks(page: Page, _: Path) -> None:
    asked(page)
    page.uncheck("#show-marks")
    expect(page.locator(".assistant .by")).to_have_count(0)


def rounds(page: Page, _: Path) -> None:
    asked(page)
    page.click("[data-action=inspect]")
    expect(page.locator("#inspector .tree svg")).to_be_visible()


def steps(page: Page, folder: Path) -> None:
    rounds(page, folder)
    page.click("[aria-label='First round']")
    page.click("[aria-label='The next round']")
    expect(page.locator("#inspector h2")).to_contain_text("Round 2 of")


def follows(page: Page, _: Path) -> None:
    choose(page, max_tokens="60")
    page.click("#open-inspector")
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator("#inspector h2")).to_contain_text(" of ")
    whole(page)


def token(page: Page, folder: Path) -> None:
    rounds(page, folder)
    page.locator(".assistant .by").first.evaluate("(each) => each.click()")
    expect(page.locator("#inspector h2")).to_contain_text("Round 1 of")


def race(page: Page, _: Path) -> None:
    choose(page, max_tokens="40")
    page.click("#open-race")
    page.click("#race >> text=Start")
    expect(page.locator(".verdict")).to_contain_text("The texts are identical", timeout=60_000)


def race_stopped(page: Page, _: Path) -> None:
    choose(page, max_tokens="1500")
    page.click("#open-race")
    page.click("#race >> text=Start")
    page.click("#race >> text=Stop")
    expect(page.locator(".phase")).to_have_text("Stopped.")


def back_from_race(page: Page, _: Path) -> None:
    asked(page)
    page.click("#open-race")
    page.click("#open-race")
    expect(page.locator(".assistant")).to_be_visible()


def drafter(page: Page, _: Path) -> None:
    page.select_option("#drafter", "none")
    asked(page)
    expect(page.locator(".assistant .by-draft")).to_have_count(0)


def settings(page: Page, _: Path) -> None:
    page.click("#open-settings")
    page.fill("#setting-top_k", "-3")
    expect(page.locator(".problem").filter(has_text="0")).to_be_visible()


def sampling(page: Page, _: Path) -> None:
    asked(page, top_k="4", min_p="0.1", repetition_penalty="1.1", temperature="0.8")
    expect(page.locator(".assistant .facts")).to_contain_text("16 tokens")


def theme(page: Page, _: Path) -> None:
    page.click("#switch-theme")
    page.click("#switch-theme")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def new(page: Page, _: Path) -> None:
    asked(page)
    listed(page)
    page.click("#new-conversation")
    expect(page.locator(".welcome")).to_be_visible()


def goes_back(page: Page, folder: Path) -> None:
    new(page, folder)
    page.go_back()
    expect(page.locator(".assistant")).to_be_visible()


def reloads(page: Page, _: Path) -> None:
    asked(page)
    page.wait_for_timeout(200)  # for the browser to have stored it
    page.reload()
    expect(page.locator(".assistant .facts")).to_contain_text("16 tokens")


def unknown(page: Page, _: Path) -> None:
    page.evaluate("location.hash = '#/c/abc'")
    expect(page.locator("#alerts")).to_contain_text("no conversation with this address")


def search(page: Page, _: Path) -> None:
    asked(page)
    listed(page)
    page.fill("#search", "nothing like it")
    expect(page.locator("#conversations")).to_contain_text("Nothing found.")


def click_of_the_only_conversation(page: Page, label: str) -> None:
    asked(page)
    listed(page)
    page.hover("#conversations li")
    page.click(f"[aria-label^={label}]")


def rename(page: Page, _: Path) -> None:
    click_of_the_only_conversation(page, "Rename")
    page.keyboard.type("A name")
    page.keyboard.press("Enter")
    expect(page.locator("#conversations .title")).to_have_text("A name")


def delete(page: Page, _: Path) -> None:
    click_of_the_only_conversation(page, "Delete")
    page.click("#conversations button.danger")
    expect(page.locator("#conversations")).to_contain_text("No conversations yet.")


def forms(page: Page, folder: Path) -> None:
    imported(page, folder)
    expect(page.locator(".text math").first).to_be_visible()


def files(page: Page, folder: Path) -> None:
    choose(page, max_tokens="16")
    file = folder / "a_rather_long_name_of_a_file_that_somebody_attaches_to_a_message.txt"
    file.write_text("some words\n" * 9)
    page.set_input_files("#attach-file", file)
    expect(page.locator("#attached li")).to_be_visible()
    ask(page, "What is it?")
    page.click(".file summary")
    expect(page.locator(".file pre")).to_be_visible()


def gone(page: Page, _: Path) -> None:
    with unreachable(page):
        send(page, QUESTION)
        expect(page.locator("#alerts")).to_contain_text("cannot be reached")


WALKS: dict[str, Walk] = {
    walk.__name__: walk
    for walk in (
        example, asks, stops, cut, regenerates, branches, edits, copies, marks, rounds, steps, follows, token, race,
        race_stopped, back_from_race, drafter, settings, sampling, theme, new, goes_back, reloads, unknown, search,
        rename, delete, forms, files, gone,
    )
}  # fmt: skip
GRID = [
    pytest.param(name, size, ground, marks=() if (name, size, ground) in QUICK else pytest.mark.slow)
    for name in WALKS
    for size in SIZES
    for ground in ("light", "dark")
]


@pytest.mark.parametrize(("name", "size", "ground"), GRID)
def test_a_way_through_the_page(
    browser: Browser, server: Served, tmp_path: Path, name: str, size: str, ground: Any
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    width, height = SIZES[size]
    window = {"viewport": {"width": width, "height": height}, "has_touch": size != "desktop"}
    for page in pages(browser, server.url, color_scheme=ground, reduced_motion="reduce", **window):
        WALKS[name](page, tmp_path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()
