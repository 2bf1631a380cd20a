"""Rounds, races, a drafter that is killed, and servers that refuse, in a real browser."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, Route, expect

from forerun import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, DraftModel, Parallel
from tests.server.page.browsing import CHROMIUM, QUESTION, ask, choose, last_answer, pages, send, text_of, whole
from tests.server.serving import ENGINE, Served, served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


PARALLEL = EngineConfig(
    target=BUILTIN_TARGET,
    drafter=Parallel(draft=DraftModel(model=BUILTIN_DRAFT)),
    num_threads=1,
    device="cpu",
    chat_template="chatml",
)

# The rounds of all answers as the browser keeps them.
ROUNDS = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("forerun");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const all = opening.result.transaction("rounds").objectStore("rounds").getAll();
    all.onsuccess = () => { opening.result.close(); resolve(all.result.flatMap((one) => one.rounds)); };
  };
})"""


@pytest.fixture(scope="module")
def parallel() -> Iterator[Served]:
    """A server that drafts in a process of its own, which may be killed."""
    with served(PARALLEL, is_demo=True) as running:
        yield running


def test_the_inspector_steps_through_the_rounds_by_keys(page: Page) -> None:
    choose(page, seed="3", max_tokens="60")
    ask(page)
    page.click("[data-action=inspect]")
    title = page.locator("#inspector h2")
    page.keyboard.press("Home")
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


def test_the_drafter_that_is_selected_drafts_and_the_text_stays(page: Page) -> None:
    choose(page, seed="3", temperature="0.7", max_tokens="60")
    ask(page)
    drafted = page.inner_text(".assistant .text")
    expect(page.locator(".assistant .by-draft, .assistant .by-lookup")).not_to_have_count(0)
    page.select_option("#drafter", "none")
    page.click("#new-conversation")
    ask(page)
    expect(page.locator(".assistant .by-bonus")).not_to_have_count(0)
    expect(page.locator(".assistant .by-draft, .assistant .by-lookup")).to_have_count(0)
    assert page.inner_text(".assistant .text") == drafted


def test_rounds_outlive_the_page(page: Page) -> None:
    choose(page, seed="3", max_tokens="60")
    ask(page)
    page.wait_for_function(f"async () => (await ({ROUNDS})()).length > 0")
    page.reload()
    page.click("[data-action=inspect]")
    expect(page.locator("#inspector h2")).to_contain_text("Round ")
    expect(page.locator("#inspector .tree .node").first).to_be_visible()


def test_a_race_ends_with_a_verdict_on_speed_and_text(page: Page) -> None:
    choose(page, max_tokens="60")
    page.click("#open-race")
    page.fill("#race-prompt", QUESTION)
    page.click("#race >> text=Start")
    expect(page.locator(".verdict")).to_contain_text("The texts are identical", timeout=60_000)
    expect(page.locator(".lane .by-draft, .lane .by-lookup").first).to_be_attached()
    drafted, plain = page.locator(".lane .text").all_inner_texts()
    assert drafted == plain


def test_a_race_with_a_drafter_in_another_process_ends_with_equal_texts(browser: Browser, parallel: Served) -> None:
    for page in pages(browser, parallel.url):
        choose(page, seed="4", temperature="0.8", max_tokens="120")
        page.click("#open-race")
        page.fill("#race-prompt", QUESTION)
        page.press("#race-prompt", "Enter")
        expect(page.locator(".verdict")).to_contain_text("The texts are identical", timeout=60_000)
        drafted, plain = page.locator(".lane .text").all_inner_texts()
        assert drafted == plain
        expect(page.locator(".lane h3").first).to_have_text("With the drafter: parallel")


def test_texts_that_differ_are_marked_where_they_part(page: Page) -> None:
    page.route("**/v1/chat/completions", answer_by_drafter)
    page.click("#open-race")
    page.click("#race >> text=Start")
    expect(page.locator(".verdict.differs")).to_contain_text("differ from character 5 on")
    assert page.locator(".lane mark").all_inner_texts() == ["two", "2"]


def answer_by_drafter(route: Route) -> None:
    """An answer that no server of ours gives: another text with a drafter than without."""
    text = "one 2" if route.request.post_data_json["forerun"]["drafter"] == "none" else "one two"
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
    route.fulfill(content_type="text/event-stream", body=f"data: {event}\n\ndata: [DONE]\n\n")


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


def test_a_conversation_that_fills_the_context_says_so(browser: Browser) -> None:
    config = replace(ENGINE, max_length=96)
    with served(config) as small:
        for page in pages(browser, small.url):
            ask(page)
            expect(page.locator(".note").last).to_contain_text("the context of 96 tokens is full")
            ask(page)
            expect(page.locator(".note").last).to_contain_text("Begin a new conversation, or edit an earlier question.")
            expect(page.locator("#alerts")).to_be_empty()


def test_a_server_with_too_much_work_says_when_to_come_back(page: Page) -> None:
    headers = {"retry-after": "7"}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, headers=headers, body="{}"))
    send(page, QUESTION)
    expect(page.locator("#alerts")).to_contain_text("too many requests are waiting. Try again in 7 s.")


def test_killing_the_drafters_process_changes_no_text(browser: Browser, parallel: Served) -> None:
    for page in pages(browser, parallel.url):
        choose(page, seed="5", temperature="0.6", max_tokens="500")
        send(page, QUESTION)
        expect(page.locator(".assistant .by").first).to_be_visible()
        page.click("#kill-drafter")
        expect(page.locator("#drafter-state")).to_have_text("drafter down")
        whole(page)
        asked = {"seed": 5, "temperature": 0.6, "max_tokens": 500, "forerun": {"drafter": "none"}}
        assert last_answer(page)["text"] == text_of(parallel, **asked)
        page.wait_for_function(f"async () => (await ({ROUNDS})()).some((one) => one.drafter_state === 'down')")
        rounds = page.evaluate(ROUNDS)
        page.click("[data-action=inspect]")
        number = 1 + next(i for i, one in enumerate(rounds) if one["drafter_state"] == "down")
        page.get_by_role("slider", name="Round").fill(str(number))
        expect(page.locator("#inspector .chosen .state-down")).to_be_attached()
        expect(page.locator("#inspector .round-words")).to_contain_text("Drafter: down.")
