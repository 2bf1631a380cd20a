"""The speed of the server's page: its first paint, and its frames while an answer is streamed.

python -m forerun_lab.checks.page_speed [--target smollm2] [--num-loads 20] [--num-answers 3]

The server is a process of its own, its target paced to 10 ms a pass without a drafter: 100 tokens/s, an event for each,
which is as often as the page can have to change. The browser is headless Chromium without a GPU; every load and every
answer has a window without a past. A frame's time is what lies between two animation frames, from the first token to
the end of the answer; a display of 60 Hz has one every 16.7 ms, and twice that where one was missed.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles

from playwright.sync_api import Browser, Page, expect, sync_playwright

from forerun.core.drafter_config import BUILTIN_TARGET
from forerun_lab.checks.common import standard_arguments, write_results

PACE = "paced:target=10ms"
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUESTION = "def merge_sorted_lists(one, other):"  # what the built-in model can go on with, too
PAINT = """() => new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
  .observe({ type: "paint", buffered: true }))"""
COUNT = """() => {
  window.frameTimes = [];
  let last = null;
  const tick = (now) => {
    if (last !== null) frameTimes.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


@contextmanager
def served(arguments: argparse.Namespace) -> Iterator[str]:
    """A server of the paced target; the page's address."""
    flags = ["--device", PACE, "--drafter", "none", "--threads", str(arguments.threads), "--port", "0"]
    flags += ["--chat-template", "chatml"] if arguments.target == BUILTIN_TARGET else []
    command = [sys.executable, "-m", "forerun", "serve", arguments.target, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = next(line for line in server.stderr if "ready: " in line)
            yield line.partition("ready: ")[2].partition("/v1")[0]
        finally:
            server.terminate()


@contextmanager
def opened(browser: Browser, url: str, width: int) -> Iterator[Page]:
    """The page in a new browser context."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(url)
    yield page
    context.close()


def paints(browser: Browser, url: str, num_loads: int) -> list[float]:
    """Milliseconds to the first paint of each load."""
    times = []
    for _ in range(num_loads):
        with opened(browser, url, 1280) as page:
            times.append(float(page.evaluate(PAINT)))
    return times


def frames(
    browser: Browser, url: str, arguments: argparse.Namespace, show: Callable[[Page], object]
) -> tuple[list[float], list[str]]:
    """Milliseconds of every frame while answers stream in, and the tokens/s that the page shows of each answer."""
    times: list[float] = []
    speeds: list[str] = []
    for number in range(arguments.num_answers):
        with opened(browser, url, 1280) as page:
            expect(page.locator("#drafter option")).not_to_have_count(0)
            page.click("#open-settings")
            page.fill("#setting-max_tokens", str(arguments.num_new))
            page.fill("#setting-temperature", "0.7")
            page.fill("#setting-seed", str(number))
            page.keyboard.press("Escape")
            show(page)
            page.fill("#question", QUESTION)
            page.press("#question", "Enter")
            expect(page.locator(".assistant .by").first).to_be_attached(timeout=60_000)
            page.evaluate(COUNT)
            expect(page.locator(".assistant")).to_have_attribute("aria-busy", "false", timeout=120_000)
            times += page.evaluate("frameTimes")
            speeds.append(page.inner_text("#meter-speed"))
    return times, speeds


def row(what: str, times_ms: Sequence[float], speeds: Sequence[str] = ()) -> dict[str, object]:
    return {
        "what": what,
        "tokens/s": ", ".join(speeds),
        "measured": len(times_ms),
        "median ms": f"{median(times_ms):.1f}",
        "p95 ms": f"{quantiles(times_ms, n=20, method='inclusive')[-1]:.1f}",
        "most ms": f"{max(times_ms):.1f}",
    }


def main() -> None:
    parser = standard_arguments(__doc__, "page_speed")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--num-loads", type=int, default=20)
    parser.add_argument("--num-answers", type=int, default=3)
    parser.add_argument("--num-new", type=int, default=600, help="tokens of an answer at most")
    arguments = parser.parse_args()
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with served(arguments) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        rows = [
            row("first paint", paints(browser, url, arguments.num_loads)),
            row("frame, text alone", *frames(browser, url, arguments, lambda page: page.focus("#question"))),
            row("frame, with the rounds", *frames(browser, url, arguments, lambda page: page.click("#open-inspector"))),
        ]
        browser.close()
    write_results(arguments, "How fast the page is", rows, [f"The target of the server is {PACE}: about 100 tokens/s."])


if __name__ == "__main__":
    main()
