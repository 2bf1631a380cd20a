"""A browser before a real server, and what a reader does there."""

import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.server.serving import Served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

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
WIDE = 1280  # pixels
PHONE = 390

# The conversations as the browser keeps them.
STORED = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("forerun");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const all = opening.result.transaction("conversations").objectStore("conversations").getAll();
    all.onsuccess = () => { opening.result.close(); resolve(all.result); };
  };
})"""


def opened_browser() -> Iterator[Browser]:
    """Chromium, closed afterwards. No other test of this thread may run an event loop meanwhile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


def pages(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a browser without a past; that nothing failed and nothing went elsewhere is checked at the end."""
    context = browser.new_context(**({"viewport": {"width": WIDE, "height": 800}} | options))
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    own = (url, "data:", "blob:")
    opened.on("request", lambda asked: faults.extend([] if asked.url.startswith(own) else [asked.url]))
    opened.on("console", lambda said: faults.extend([said.text] if "Content Security Policy" in said.text else []))
    opened.goto(url)
    expect(opened.locator("#drafter option")).not_to_have_count(0)
    yield opened
    context.close()
    assert faults == [], faults


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
