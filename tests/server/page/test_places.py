"""Where things are found again: addresses of conversations, cut answers that go on, files, the context that is used."""

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect

from tests.server.page.browsing import (
    CHROMIUM,
    PHONE,
    QUESTION,
    STORED,
    ask,
    choose,
    last_answer,
    pages,
    send,
    text_of,
    whole,
)
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


def test_a_conversation_has_an_address_that_outlives_a_reload_and_leads_back_and_forward(page: Page) -> None:
    choose(page, max_tokens="8")
    ask(page, "def first():")
    expect(page).to_have_url(re.compile(r"/#/c/[0-9a-f]{24}$"))
    first = page.url
    page.click("#new-conversation")
    assert "#" not in page.url
    ask(page, "def second():")
    assert page.url != first
    page.wait_for_function(f"async () => (await ({STORED})()).every((one) => Object.keys(one.messages).length === 2)")
    page.reload()
    expect(page.locator(".user .text")).to_have_text("def second():")
    page.go_back()
    expect(page.locator(".welcome")).to_be_visible()
    page.go_back()
    expect(page.locator(".user .text")).to_have_text("def first():")
    assert page.url == first
    page.go_forward()
    page.go_forward()
    expect(page.locator(".user .text")).to_have_text("def second():")
    page.goto(first)
    expect(page.locator(".user .text")).to_have_text("def first():")


def test_an_address_of_no_conversation_says_so(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/#/c/0123456789abcdef01234567")
    page.reload()
    expect(page.locator("#alerts")).to_contain_text("has no conversation with this address")
    expect(page.locator(".welcome")).to_be_visible()


def test_a_cut_answer_goes_on_and_ends_as_if_it_had_not_been_cut(page: Page, server: Served) -> None:
    """Of a text that tokens cannot be cut from otherwise than they were written."""
    choose(page, max_tokens="20", seed="3", temperature="0.9")
    ask(page)
    expect(page.locator(".note").last).to_contain_text("Cut off: the settings allow no longer answer")
    page.reload()
    page.click("[data-action=continue]")
    whole(page)
    expect(page.locator(".assistant .facts")).to_contain_text("40 tokens")
    answer = last_answer(page)
    assert answer["text"] == text_of(server, max_tokens=40, seed=3, temperature=0.9)
    assert answer["marks"][-1]["end"] == len(answer["text"])
    rounds = [mark["round"] for mark in answer["marks"]]
    assert rounds == sorted(rounds)
    page.locator(".assistant .by").last.click()
    page.click("[data-action=inspect]")
    expect(page.locator("#inspector [type=range]")).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator("#inspector h2")).to_have_text(f"Round {rounds[-1] + 1} of {rounds[-1] + 1}")
    expect(page.locator(".assistant")).to_have_count(1)


def test_a_stopped_answer_goes_on_and_a_finished_or_followed_one_does_not(page: Page) -> None:
    choose(page, max_tokens="1500")
    send(page, QUESTION)
    expect(page.locator(".assistant .by").nth(5)).to_be_visible()
    page.keyboard.press("Escape")
    whole(page)
    begun = page.inner_text(".assistant .text")
    choose(page, max_tokens="10")
    page.click("[data-action=continue]")
    whole(page)
    assert page.inner_text(".assistant .text").startswith(begun.rstrip())
    assert len(page.inner_text(".assistant .text")) > len(begun)
    send(page, "again")
    whole(page)
    expect(page.locator("[data-action=continue]").first).to_be_hidden()
    expect(page.locator("[data-action=continue]").last).to_be_visible()


def test_a_text_file_goes_with_the_message_and_its_name_and_text_reach_the_server(page: Page, tmp_path: Path) -> None:
    choose(page, max_tokens="4")
    file = tmp_path / "notes.md"
    file.write_text("one\n```\ntwo\n")
    asked = []
    page.on("request", lambda request: asked.append(request) if "completions" in request.url else None)
    page.set_input_files("#attach-file", file)
    expect(page.locator("#attached")).to_contain_text("notes.md")
    ask(page, "What is this?")
    content = asked[0].post_data_json["messages"][-1]["content"]
    assert content == "File notes.md:\n````\none\n```\ntwo\n````\n\nWhat is this?"
    expect(page.locator("#attached")).to_be_hidden()
    expect(page.locator(".user .file summary")).to_have_text("notes.md")
    page.reload()
    page.locator(".user .file summary").click()
    expect(page.locator(".user .file pre")).to_contain_text("two")


@pytest.mark.parametrize(
    ("content", "words"), [(b"x" * 200_001, "at most 200 kB"), (b"a\0b", "no text in UTF-8"), (b"\xff\xfe", "no text")]
)
def test_a_file_that_cannot_go_is_refused_in_words(page: Page, tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "thing.bin"
    file.write_bytes(content)
    page.set_input_files("#attach-file", file)
    expect(page.locator("#alerts")).to_contain_text("thing.bin: this")
    expect(page.locator("#alerts")).to_contain_text(words)
    expect(page.locator("#attached")).to_be_hidden()


def test_the_gauge_shows_how_much_of_the_context_is_used(page: Page, server: Served) -> None:
    choose(page, max_tokens="20")
    expect(page.locator("#gauge")).to_be_hidden()
    ask(page)
    usage = last_answer(page)["usage"]
    used = usage["prompt_tokens"] + usage["completion_tokens"]
    expect(page.locator("#context-words")).to_have_text(f"context {used} of 2,048")
    page.reload()
    expect(page.locator("#context")).to_have_js_property("value", used)
    page.click("#new-conversation")
    expect(page.locator("#gauge")).to_be_hidden()


def test_the_sampling_that_is_set_reaches_the_server(page: Page) -> None:
    asked = []
    page.on("request", lambda request: asked.append(request) if "completions" in request.url else None)
    given = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    choose(page, max_tokens="4", **{name: str(value) for name, value in given.items()})
    ask(page)
    assert given.items() <= asked[0].post_data_json.items()


def test_rounds_open_where_most_was_accepted(page: Page) -> None:
    choose(page, seed="3", max_tokens="60")
    ask(page)
    kept = [0] * 99
    for mark in last_answer(page)["marks"]:
        kept[mark["round"]] += mark["by"] != "bonus"
    for button in ("[data-action=inspect]", "#open-inspector"):
        page.click(button)
        expect(page.locator("#inspector h2")).to_contain_text(f"Round {kept.index(max(kept)) + 1} of")
        page.keyboard.press("Escape")


def test_where_drafting_rests_the_page_says_that_it_does_not_pay(page: Page) -> None:
    rests = """([by, drafter]) => import("./page/inspector.js").then(({ Inspector }) => {
      const tokens = [{ text: "a", by: "bonus" }];
      const round = { tree: null, tokens, drafter_state: "ready", drafted_by: by, verify_ms: 1 };
      new Inspector().open(Array(10).fill(round), null, drafter);
    })"""
    page.evaluate(rests, ["none", "auto"])
    expect(page.locator(".rests")).to_contain_text("Drafting pauses in 10 of 10 rounds: it does not pay here")
    page.evaluate(rests, ["", "none"])
    expect(page.locator(".rests")).to_be_hidden()


def test_a_title_has_the_whole_line_until_its_buttons_are_wanted(page: Page) -> None:
    choose(page, max_tokens="4")
    ask(page, "A title that is certainly longer than the list of conversations is wide")
    page.focus("#question")
    page.mouse.move(700, 300)
    row = page.locator("#conversations li").bounding_box()
    title = page.locator("#conversations .title").bounding_box()
    assert row is not None
    assert title is not None
    assert title["width"] >= row["width"] - 1
    page.hover("#conversations li")
    narrower = page.locator("#conversations .title").bounding_box()
    assert narrower is not None
    assert narrower["width"] < row["width"] - 60
    page.click("[aria-label^=Rename]")
    expect(page.locator("[aria-label='New title']")).to_be_focused()


def test_on_a_phone_the_drafters_name_is_whole_and_no_number_stands_alone(browser: Browser, server: Served) -> None:
    for page in pages(browser, server.url, viewport={"width": PHONE, "height": 800}):
        choose(page, max_tokens="30")
        ask(page)
        ask(page, "again")
        expect(page.locator(".drafter span")).to_be_in_viewport()
        assert page.locator(".drafter span").bounding_box()["width"] > 40  # type: ignore[index]
        for is_demo in (False, True):
            page.evaluate(f"document.querySelector('#kill-drafter').hidden = {str(not is_demo).lower()}")
            needed = page.evaluate("""() => {
              const select = document.querySelector("#drafter");
              const words = document.createElement("span");
              words.style.cssText = `font:${getComputedStyle(select).font};position:absolute`;
              words.textContent = "prompt lookup";
              document.body.append(words);
              return { has: select.clientWidth, width: words.offsetWidth + 18 + 20 }; // its padding and its arrow
            }""")
            assert needed["has"] >= needed["width"]
        lines = page.evaluate("""() => {
          const facts = [...document.querySelectorAll(".assistant:last-child .facts span")];
          const tops = facts.flatMap((each) => [...each.getClientRects()].map(({ top }) => Math.round(top)));
          return Object.values(Object.groupBy(tops, (top) => top)).map((each) => each.length);
        }""")
        assert len(lines) > 1
        assert min(lines) > 1
        expect(page.locator(".facts").last).to_contain_text(" cached")
