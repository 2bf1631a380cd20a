"""How the page looks and is used: widths, themes, names, and how often it changes."""

from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect

from tests.server.page.browsing import CHROMIUM, PHONE, QUESTION, WIDE, ask, choose, pages, send, whole
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_nothing_is_wider_than_the_window(browser: Browser, server: Served, theme: Any, width: int) -> None:
    size = {"width": width, "height": 780}
    for page in pages(browser, server.url, viewport=size, color_scheme=theme, reduced_motion="reduce"):
        choose(page, max_tokens="40")
        ask(page, f"{QUESTION}  # a title that is longer than the list of conversations is wide")
        page.click("[data-action=inspect]")
        page.click("[aria-label='Close the rounds']")
        page.click("#open-race")
        sidebar = page.locator("#sidebar").bounding_box()
        assert sidebar is not None
        assert sidebar["width"] <= 300
        for place in ("document.documentElement", "document.querySelector('#race')"):
            assert page.evaluate(f"{place}.scrollWidth - {place}.clientWidth") <= 0


@pytest.mark.parametrize(("system", "other"), [("light", "dark"), ("dark", "light")])
def test_the_switch_goes_against_the_system(browser: Browser, server: Served, system: Any, other: str) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    for page in pages(browser, server.url, color_scheme=system):
        before = ground(page)
        while page.get_attribute("#switch-theme", "aria-label") != f"Theme: {other}":
            page.click("#switch-theme")
        assert ground(page) != before
        page.reload()
        assert ground(page) != before


def test_the_text_changes_once_in_a_frame_at_most_and_the_live_region_hardly(page: Page) -> None:
    choose(page, max_tokens="300")
    send(page, QUESTION)
    expect(page.locator(".assistant .by").first).to_be_visible()
    page.evaluate("""() => {
      window.seen = { frames: 0, changes: 0, said: 0 };
      const count = () => { seen.frames++; requestAnimationFrame(count); };
      requestAnimationFrame(count);
      const watch = (selector, name) => new MutationObserver(() => seen[name]++)
        .observe(document.querySelector(selector), { childList: true, subtree: true, characterData: true });
      watch("#messages", "changes");
      watch("#status", "said");
    }""")
    whole(page)
    seen = page.evaluate("seen")
    assert 0 < seen["changes"] <= seen["frames"] + 2  # and the end of the answer, which waits for no frame
    assert seen["said"] <= 1


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    choose(page, max_tokens="20")
    ask(page)
    page.click("[data-action=inspect]")
    page.click("#open-race")
    page.click("#open-settings")
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, textarea, select, summary, a")]
      .filter((each) => each.type !== "file" || !each.hidden)
      .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim() || each.labels?.length))
      .map((each) => each.outerHTML)""")
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


def test_a_link_skips_to_the_question(page: Page) -> None:
    page.focus(".skip")
    page.keyboard.press("Enter")
    page.keyboard.type("x")
    expect(page.locator("#question")).to_have_value("x")


def test_a_drawer_of_conversations_keeps_the_rest_out_of_reach(browser: Browser, server: Served) -> None:
    for page in pages(browser, server.url, viewport={"width": PHONE, "height": 780}):
        page.click("#open-sidebar")
        expect(page.locator("#search")).to_be_focused()
        assert page.evaluate("document.querySelector('#middle').inert")
        page.keyboard.press("Escape")
        expect(page.locator("#open-sidebar")).to_be_focused()
        assert not page.evaluate("document.querySelector('#middle').inert")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_ink_can_be_read_on_every_ground(browser: Browser, server: Served, theme: Any) -> None:
    """A ratio of 4.5 is what WCAG 2.2 asks of text, level AA."""
    tints = ("draft", "lookup", "recycled", "prediction")
    code = ("keyword", "string", "number", "title")
    inks_on = {
        **dict.fromkeys(("ground", "panel", "raised"), ("ink", "quiet", "accent", "danger", *code)),
        **dict.fromkeys(tints, ("ink", "quiet", "accent", *code)),  # quotes, links and code have tokens too
        "accent": ("on-accent",),
    }
    for page in pages(browser, server.url, color_scheme=theme):
        for ground, inks in inks_on.items():
            for ink in inks:
                assert contrast(colour(page, ink), colour(page, ground)) >= 4.5, (ink, ground)


def colour(page: Page, name: str) -> str:
    return str(page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours written as #rrggbb."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(written: str) -> float:
    shares = [int(written[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
