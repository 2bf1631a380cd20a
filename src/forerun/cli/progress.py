"""Progress on stderr: a bar on a terminal, else a line every ten seconds."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Final

from forerun.cli.failures import say

BETWEEN_LINES_S: Final = 10.0
OnProgress = Callable[[int, int], None]  # how many are done, of how many in all


@contextmanager
def progress(label: str) -> Iterator[OnProgress]:
    """A function to report progress to."""
    if not sys.stderr.isatty():
        with lines_of(label) as say_more:
            yield lambda done, total: say_more(f", {done} of {total} done")
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def lines_of(label: str, tell: Callable[[str], None] = say) -> Iterator[Callable[[str], None]]:
    """Print a line every ten seconds, with the time so far and what the yielded function was told last."""
    began = monotonic()
    more = ""
    is_over = Event()

    def say_more(told: str) -> None:
        nonlocal more
        more = told

    def go_on() -> None:
        while not is_over.wait(BETWEEN_LINES_S):
            tell(f"{label} for {monotonic() - began:.0f} s{more}")

    Thread(target=go_on, daemon=True).start()
    try:
        yield say_more
    finally:
        is_over.set()
