"""Rounds, races, a drafter that is killed, and servers that refuse, in a real browser."""

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect

from forerun import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, DraftModel, Parallel
from tests.server.page.browsing import CHROMIUM, QUESTION, ask, choose, last_answer, pages, send, text_of, whole
from tests.server.serving import served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


def test_the_inspector_steps_through_the_rounds_by_keys(page: Page) -> None:
    choose(page, seed="3", max_tokens="60")
    ask(page)
    page.click("[data-action=inspect]")
    title = page.locator("#inspector h2")
    expect(title).to_contain_text("Round 1 of")
    page.keyboard.press("ArrowRight")
    expect(title).to_contain_text("Round 2 of")
    page.focus("#inspector .tree")
    page.keyboard.press("ArrowRight")
    expect(title).to_contain_text("Round 3 of")
    page.click("[aria-label='Last round']")
    num_rounds = int(title.inner_text().split()[-1])
    expect(title).to_have_text(f"Round {num_rounds} of {num_rounds}")
    assert len({mark["round"] for mark in last_answer(page)["marks"]}) <= num_rounds
    expect(page.locator("#inspector .tree .node.kept").first).to_be_visible()
    expect(page.locator("#inspector .span-target").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#inspector")).to_be_hidden()


def test_a_race_ends_with_a_verdict_on_speed_and_text(page: Page) -> None:
    choose(page, max_tokens="60")
    page.click("#open-race")
    page.fill("#race-prompt", QUESTION)
    page.click("#race >> text=Start")
    expect(page.locator(".verdict")).to_contain_text("The texts are identical", timeout=60_000)
    expect(page.locator(".lane .by-draft, .lane .by-lookup").first).to_be_attached()


def test_a_server_that_is_gone_is_said_in_words_and_asked_again(page: Page) -> None:
    choose(page, max_tokens="4")
    page.context.set_offline(True)
    send(page, QUESTION)
    expect(page.locator("#alerts")).to_contain_text("cannot be reached")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    whole(page)
    expect(page.locator("#alerts")).to_be_empty()
    assert last_answer(page)["text"] != ""


def test_a_wanted_key_is_asked_for(browser: Browser) -> None:
    key = "a key of the tests, long enough"
    with served(api_keys=(key,)) as locked:
        page = browser.new_page()
        page.goto(locked.url)
        page.get_by_role("button", name="Enter the key").click()
        page.fill("#setting-key", key)
        page.click("#settings >> text=Done")
        expect(page.locator("#drafter option")).not_to_have_count(0)
        choose(page, max_tokens="4")
        ask(page)
        expect(page.locator(".assistant .facts")).to_contain_text("4 tokens")
        page.context.close()


def test_killing_the_drafters_process_changes_no_text(browser: Browser) -> None:
    drafter = Parallel(draft=DraftModel(model=BUILTIN_DRAFT))
    config = EngineConfig(target=BUILTIN_TARGET, drafter=drafter, num_threads=1, device="cpu", chat_template="chatml")
    with served(config, is_demo=True) as running:
        for page in pages(browser, running.url):
            choose(page, seed="5", temperature="0.6", max_tokens="900")
            send(page, QUESTION)
            expect(page.locator(".assistant .by").first).to_be_visible()
            page.click("#kill-drafter")
            whole(page)
            assert last_answer(page)["text"] == text_of(running, seed=5, temperature=0.6, max_tokens=900)
