"""The page without a mouse and without eyes: keys alone, names that are read out, axe-core's rules."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect

from tests.server.page.browsing import CHROMIUM, PHONE, QUESTION, WIDE, ask, choose, pages, whole
from tests.server.page.test_text import MARKDOWN
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]

FOCUSED = """() => {
  const { activeElement: at } = document;
  const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent;
  return at === document.body ? "" : name.trim();
}"""


def imported(page: Page, folder: Path) -> None:
    """Open a conversation with every form of text that an answer can have."""
    question = {"role": "user", "parent": None, "text": QUESTION, "chosen": "b"}
    answer = {"role": "assistant", "parent": "a", "text": MARKDOWN, "reasoning": "Some thoughts."}
    file = folder / "conversations.json"
    file.write_text(
        json.dumps({"conversations": [{"title": "All forms", "messages": {"a": question, "b": answer}, "chosen": "a"}]})
    )
    page.set_input_files("#import-file", file)
    page.locator("#conversations .title").get_by_text("All forms").evaluate("(each) => each.click()")
    expect(page.locator(".text table")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_of(browser: Browser, server: Served, tmp_path: Path, theme: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def check(page: Page, state: str) -> None:
        for width in (WIDE, PHONE):
            page.set_viewport_size({"width": width, "height": 780})
            found = axe.run(page)
            assert found.violations_count == 0, f"{state} at {width} pixels: {found.generate_report()}"

    for page in pages(browser, server.url, color_scheme=theme, reduced_motion="reduce"):
        choose(page, seed="3", max_tokens="60")
        check(page, "the welcome")
        imported(page, tmp_path)
        ask(page)
        check(page, "a conversation")
        page.locator("[data-action=inspect]").last.click()
        check(page, "the rounds")
        page.click("[aria-label='Close the rounds']")
        page.locator("[data-action=edit]").last.click()
        check(page, "a question that is edited")
        page.click("#open-race")
        page.click("#race >> text=Start")
        expect(page.locator(".verdict")).not_to_be_empty(timeout=60_000)
        check(page, "a race")
        page.click("#open-settings")
        page.fill("#setting-temperature", "9")
        check(page, "the settings with a fault")
        page.keyboard.press("Escape")
        with unreachable(page):
            page.click("#race >> text=Start")
            expect(page.locator(".alert")).to_be_visible()
            check(page, "a failure")
        page.click("#open-sidebar")
        check(page, "the list of conversations")


@contextmanager
def unreachable(page: Page) -> Iterator[None]:
    """The server cannot be reached meanwhile."""
    page.context.set_offline(True)
    yield
    page.context.set_offline(False)


def test_everything_is_reached_by_tab_and_nothing_holds_the_focus(page: Page) -> None:
    choose(page, max_tokens="40", seed="3")
    ask(page)
    page.focus("#new-conversation")
    reached = []
    while (name := page.evaluate(FOCUSED)) and len(reached) < 60:
        reached.append(name)
        page.keyboard.press("Tab")
    named = ["New conversation", "Search conversations", QUESTION, f"Rename {QUESTION}", f"Delete {QUESTION}", "Export"]
    named += ["Import", "Race", "Rounds", "Settings", "Attach text files", "Copy", "Edit", "Regenerate"]
    named += ["Your message", "Send"]
    assert [name for name in named if name not in reached] == []
    assert len(reached) < 60


def test_a_conversation_with_its_rounds_is_had_by_keys_alone(page: Page) -> None:
    choose(page, max_tokens="40", seed="3")
    page.keyboard.press("Control+Shift+O")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    whole(page)
    first = page.inner_text(".assistant .text")
    rounds = page.locator("[data-action=inspect]")
    rounds.press("Enter")
    expect(page.locator("#inspector h2")).to_contain_text("Round ")
    page.keyboard.press("Home")
    expect(page.locator("#inspector h2")).to_contain_text("Round 1 of")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#inspector h2")).to_contain_text("Round 2 of")
    page.keyboard.press("Escape")
    expect(rounds).to_be_focused()
    page.locator("[data-action=edit]").press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator(".edit")).to_have_count(0)
    page.locator("[data-action=regenerate]").press("Enter")
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    whole(page)
    page.locator("[data-action=before]").press("Enter")
    expect(page.locator("[data-action=before]")).to_be_focused()
    assert page.inner_text(".assistant .text") == first


def test_a_race_is_run_and_stopped_by_keys_alone(page: Page) -> None:
    choose(page, max_tokens="1500")
    page.locator("#open-race").press("Enter")
    expect(page.locator("#race-prompt")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".lane .by").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.locator(".phase")).to_have_text("Stopped.")
    page.locator("#open-race").press("Enter")
    expect(page.locator("#question")).to_be_visible()


def test_a_screen_reader_hears_names_and_what_happens(page: Page) -> None:
    expect(page.locator("body")).to_match_aria_snapshot("""
      - navigation "Conversations":
        - button "New conversation"
        - searchbox "Search conversations"
      - banner:
        - heading "builtin" [level=1]
        - combobox "Drafter"
        - button "Race"
        - button "Rounds"
        - 'button "Theme: as the system has it"'
        - button "Settings"
      - main:
        - region "Conversation":
          - button "Attach text files"
          - textbox "Your message"
          - button "Send"
          - switch "Show who wrote" [checked]
          - group "Who wrote the tokens"
    """)
    choose(page, max_tokens="30", seed="3")
    ask(page)
    expect(page.locator("#status")).to_contain_text("30 tokens.")
    expect(page.locator("#messages")).to_match_aria_snapshot("""
      - article "You, message 1":
        - button "Copy"
        - button "Edit"
      - article "The model, message 2":
        - button "Continue this answer where it ends"
        - button "Copy"
        - button "Rounds"
        - button "Regenerate"
    """)
    page.locator("[data-action=inspect]").click()
    expect(page.locator("#inspector .round-words")).to_contain_text("the model")
    expect(page.locator("#inspector .timeline svg")).to_have_accessible_name(re.compile("the model worked"))


def test_escape_closes_rounds_that_are_empty_too(page: Page) -> None:
    page.locator("#open-inspector").press("Enter")
    expect(page.locator("[aria-label='Close the rounds']")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#inspector")).to_be_hidden()
    expect(page.locator("#open-inspector")).to_be_focused()
