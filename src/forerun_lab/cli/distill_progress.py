"""Progress of a distillation on stderr: a bar on a terminal, else a line for every stage and every 30 seconds."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from forerun.cli.failures import say

if TYPE_CHECKING:
    from forerun_lab.distill.config import DistillProgress

LINE_EVERY_S: Final = 30.0

Draw = Callable[["DistillProgress"], None]


@contextmanager
def drawing() -> Iterator[Draw]:
    """A function that draws the progress of the run."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    left = TextColumn("{task.fields[left]} left  {task.fields[detail]}")
    columns = (TextColumn("{task.description}"), BarColumn(), left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the target", total=None, left="", detail="")

        def draw(progress: "DistillProgress") -> None:
            bar.update(
                task,
                description=progress.doing,
                completed=progress.seconds,
                total=progress.total_s,
                left=clock(progress.total_s - progress.seconds),
                detail=progress.detail,
            )

        yield draw


def _lines() -> Draw:
    last_s = -inf
    doing = ""

    def draw(progress: "DistillProgress") -> None:
        nonlocal last_s, doing
        if progress.doing != doing or monotonic() - last_s >= LINE_EVERY_S:
            last_s = monotonic()
            doing = progress.doing
            say(line_of(progress))

    return draw


def line_of(progress: "DistillProgress") -> str:
    """What is done, the remaining time unless it is over, and details if there are any."""
    left_s = progress.total_s - progress.seconds
    rest = [f"{clock(left_s)} left"] if left_s > 0 else []
    rest += [progress.detail] if progress.detail else []
    return progress.doing + (f": {', '.join(rest)}" if rest else "")


def clock(seconds: float) -> str:
    """A time such as 1:05:09 or 5:09."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
