"""A chat in a real browser: text, marks, branches, what is kept."""

from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Page, expect

from forerun.core.steps import GenerationStats
from tests.server.page.browsing import CHROMIUM, QUESTION, STORED, ask, choose, last_answer, send, text_of, whole
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


def test_an_answer_is_the_servers_text_with_every_token_marked(page: Page, server: Served) -> None:
    choose(page, seed="3", temperature="0.7", max_tokens="60")
    ask(page)
    answer = last_answer(page)
    assert answer["text"] == text_of(server, seed=3, temperature=0.7, max_tokens=60)
    assert answer["marks"][-1]["end"] == len(answer["text"])
    written_by = {mark["by"] for mark in answer["marks"]}
    assert "bonus" in written_by
    assert written_by & {"draft", "lookup", "recycled"}
    expect(page.locator(".assistant .by-bonus").first).to_be_visible()
    expect(page.locator(".assistant .facts")).to_contain_text("60 tokens")


def test_without_marks_the_text_stays_and_the_spans_go(page: Page) -> None:
    choose(page, seed="3", max_tokens="40")
    ask(page)
    marked = page.inner_text(".assistant .text")
    page.uncheck("#show-marks")
    expect(page.locator(".assistant .by")).to_have_count(0)
    assert page.inner_text(".assistant .text") == marked
    expect(page.locator("#legend")).to_be_hidden()


def test_regenerating_and_editing_make_branches_that_arrows_reach(page: Page) -> None:
    choose(page, max_tokens="20", temperature="1")
    ask(page)
    first = page.inner_text(".assistant .text")
    page.click("[data-action=regenerate]")
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    whole(page)
    page.click("[data-action=before]")
    expect(page.locator(".branches")).to_contain_text("1 / 2")
    assert page.inner_text(".assistant .text") == first
    page.click("[data-action=edit]")
    page.fill(".edit", "class Reader:")
    page.press(".edit", "Enter")
    whole(page)
    expect(page.locator(".user .branches")).to_contain_text("2 / 2")
    page.click(".user [data-action=before]")
    assert page.inner_text(".assistant .text") == first


@pytest.mark.parametrize(
    ("gained", "headline"),
    [
        (None, "Ask something, and see who wrote each word."),
        (True, "Ask something, and watch it being guessed ahead."),
        (False, "Ask something."),
    ],
)
def test_the_page_says_what_was_measured_and_which_model_would_gain(
    page: Page, server: Served, monkeypatch: pytest.MonkeyPatch, gained: bool | None, headline: str
) -> None:
    monkeypatch.setattr(GenerationStats, "gained", property(lambda stats: gained))
    monkeypatch.setattr(server.service, "gained", None)
    page.reload()
    expect(page.locator(".welcome h2")).to_have_text("Ask something, and see who wrote each word.")
    choose(page, max_tokens="20")
    ask(page)
    said = page.locator("#no-gain")
    if gained is False:
        expect(said).to_contain_text(
            "Guesses did not make the newest measured answer faster on this machine. With qwen2.5"
        )
    page.click("#new-conversation")
    expect(page.locator(".welcome h2")).to_have_text(headline)
    assert said.is_visible() == (gained is False)


def test_escape_stops_an_answer_and_keeps_what_came(page: Page) -> None:
    choose(page, max_tokens="1900")
    send(page, QUESTION)
    expect(page.locator(".assistant .by").first).to_be_visible()
    page.keyboard.press("Escape")
    whole(page)
    expect(page.locator(".note").last).to_have_text("Stopped.")
    assert last_answer(page)["text"] != ""


def test_shift_and_enter_break_the_line(page: Page) -> None:
    page.fill("#question", "one")
    page.press("#question", "Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#question")).to_have_value("one\ntwo")
    expect(page.locator(".message")).to_have_count(0)


def test_conversations_outlive_the_page_and_are_found_renamed_and_deleted(page: Page) -> None:
    choose(page, max_tokens="8")
    ask(page, "def first():")
    page.click("#new-conversation")
    ask(page, "def second():")
    page.wait_for_function(f"async () => (await ({STORED})()).every((one) => Object.keys(one.messages).length === 2)")
    page.reload()
    expect(page.locator("#conversations li")).to_have_count(2)
    page.fill("#search", "FIRST")
    expect(page.locator("#conversations li")).to_have_count(1)
    page.click("#conversations .title")
    expect(page.locator(".user .text")).to_have_text("def first():")
    page.click("[aria-label='Rename def first():']")
    page.keyboard.type("First of all")
    page.keyboard.press("Enter")
    expect(page.locator("#conversations .title")).to_have_text("First of all")
    page.click("[aria-label='Delete First of all']")
    page.click("#conversations button.danger")
    page.fill("#search", "")
    expect(page.locator("#conversations .title")).to_have_text("def second():")
    page.wait_for_function(f"async () => (await ({STORED})()).length === 1")


def test_what_is_exported_can_be_imported_again(page: Page, tmp_path: Path) -> None:
    choose(page, max_tokens="12")
    ask(page)
    answer = last_answer(page)
    with page.expect_download() as caught:
        page.click("#export-all")
    file = tmp_path / "conversations.json"
    caught.value.save_as(file)
    page.set_input_files("#import-file", file)
    expect(page.locator("#conversations li")).to_have_count(2)
    assert last_answer(page, 2)["text"] == answer["text"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"conversations": [{"messages": {"a": {"role": "user", "parent": "a"}}}]}']
)
def test_a_file_without_conversations_is_refused_in_words(page: Page, tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    page.set_input_files("#import-file", file)
    expect(page.locator("#alerts")).to_contain_text("holds no conversations")
