"""A progress bar on stderr, if it is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[int, int], None]  # how many are done, of how many in all


@contextmanager
def progress(label: str) -> Iterator[OnProgress]:
    """A function to report progress to; nothing is drawn if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
