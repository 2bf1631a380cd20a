"""The page in a real browser, before a real server with the built-in pair."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from forerun import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, Parallel
from tests.server.serving import Served, served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
QUESTION = "def read_lines(path):"
WIDE, PHONE = 1280, 390  # pixels

# The conversations as the browser keeps them.
STORED = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("forerun");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const all = opening.result.transaction("conversations").objectStore("conversations").getAll();
    all.onsuccess = () => { opening.result.close(); resolve(all.result); };
  };
})"""

MARKDOWN = """# Head

A *word*, a **strong _one_**, `code * here`, snake_case_name, 2 * 3 * 4 and [a link](https://example.com/a).
<img src=x onerror="window.isBroken = true"> [bad](javascript:alert(1))

- one
- two
  - deeper

- after an empty line
- last

1. first

2. second

```python
def f(x):
    return x  # a comment
```

| a | b |
|---|---|
| 1 | **2** |

> quoted
> twice
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    yield from pages(browser, server.url)


def pages(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a browser without a past; that nothing failed and nothing went elsewhere is checked at the end."""
    context = browser.new_context(**({"viewport": {"width": WIDE, "height": 800}} | options))
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith((url, "data:", "blob:")) else faults.append(asked.url))
    opened.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    opened.goto(url)
    expect(opened.locator("#drafter option")).not_to_have_count(0)
    yield opened
    context.close()
    assert faults == []


def choose(page: Page, **settings: str) -> None:
    page.click("#open-settings")
    for name, value in settings.items():
        page.fill(f"#setting-{name}", value)
    page.click("#settings >> text=Done")


def send(page: Page, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def ask(page: Page, text: str = QUESTION) -> None:
    """Send a question and wait for the whole answer."""
    num_answers = page.locator(".assistant").count()
    send(page, text)
    expect(page.locator(".assistant")).to_have_count(num_answers + 1)
    whole(page)


def whole(page: Page) -> None:
    expect(page.locator(".assistant").last).to_have_attribute("aria-busy", "false", timeout=60_000)


def last_answer(page: Page, num_conversations: int = 1) -> dict[str, Any]:
    """The newest answer as it is kept."""
    page.wait_for_function(f"async () => (await ({STORED})()).length === {num_conversations}")
    answers = [message for one in page.evaluate(STORED) for message in one["messages"].values()]
    return [message for message in answers if message["role"] == "assistant"][-1]


def text_of(server: Served, **request: Any) -> str:
    """The same answer from the API."""
    with server.client() as client:
        body = {"model": "builtin", "messages": [{"role": "user", "content": QUESTION}], **request}
        return str(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


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
    expect(page.locator(".branches")).to_have_text("‹2 / 2›")
    whole(page)
    page.click("[data-action=before]")
    expect(page.locator(".branches")).to_have_text("‹1 / 2›")
    assert page.inner_text(".assistant .text") == first
    page.click("[data-action=edit]")
    page.fill(".edit", "class Reader:")
    page.press(".edit", "Enter")
    whole(page)
    expect(page.locator(".user .branches")).to_have_text("‹2 / 2›")
    page.click(".user [data-action=before]")
    assert page.inner_text(".assistant .text") == first


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


def test_text_that_grows_piece_by_piece_ends_as_when_it_is_shown_at_once(page: Page) -> None:
    shown = page.evaluate(
        """async (source) => {
          const { Rendered } = await import("/page/markdown.js");
          const marks = [...source].map((_, i) => ({ end: i + 1, by: "draft", round: i }));
          const whole = document.createElement("div");
          new Rendered(whole).rebuild(source, marks);
          const plain = document.createElement("div");
          new Rendered(plain).rebuild(source, null);
          const grown = [1, 2, 3, 5, 7].map((step) => {
            const into = document.createElement("div");
            const rendered = new Rendered(into);
            for (let end = step; end < source.length; end += step) rendered.update(source.slice(0, end), marks);
            rendered.update(source, marks);
            return into.innerHTML;
          });
          return { whole: whole.innerHTML, grown, same: whole.textContent === plain.textContent, plain: plain.innerHTML };
        }""",
        MARKDOWN,
    )
    assert shown["grown"] == [shown["whole"]] * 5
    assert shown["same"]
    assert "<strong>strong <em>one</em></strong>" in shown["plain"]
    assert "<li>deeper</li>" in shown["plain"]
    assert "snake_case_name, 2 * 3 * 4" in shown["plain"]
    assert "&lt;img" in shown["plain"]
    assert "<img" not in shown["whole"] + shown["plain"]
    assert 'href="javascript' not in shown["whole"] + shown["plain"]


def test_what_a_user_writes_never_becomes_markup(page: Page) -> None:
    choose(page, max_tokens="2")
    text = '<img src=x onerror="window.isBroken = true"><b>bold</b>'
    ask(page, text)
    expect(page.locator(".user .text")).to_have_text(text)
    assert page.evaluate("window.isBroken") is None


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
    drafter = Parallel(draft=BUILTIN_DRAFT)
    config = EngineConfig(target=BUILTIN_TARGET, drafter=drafter, num_threads=1, device="cpu", chat_template="chatml")
    with served(config, is_demo=True) as running:
        for page in pages(browser, running.url):
            choose(page, seed="5", temperature="0.6", max_tokens="900")
            send(page, QUESTION)
            expect(page.locator(".assistant .by").first).to_be_visible()
            page.click("#kill-drafter")
            whole(page)
            assert last_answer(page)["text"] == text_of(running, seed=5, temperature=0.6, max_tokens=900)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_nothing_is_wider_than_the_window(browser: Browser, server: Served, theme: Any, width: int) -> None:
    size = {"width": width, "height": 780}
    for page in pages(browser, server.url, viewport=size, color_scheme=theme, reduced_motion="reduce"):
        choose(page, max_tokens="40")
        ask(page)
        page.click("[data-action=inspect]")
        page.click("[aria-label='Close the inspector']")
        page.click("#open-race")
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
