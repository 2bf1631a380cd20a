"""Fetches models with short names, with visible progress."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forerun.checkpoints.short_names.catalogue import NamedModel, find_named
from forerun.checkpoints.short_names.local import find_local

if TYPE_CHECKING:
    from forerun.checkpoints.short_names.watch import Report


def fetch_visibly(name: str) -> None:
    """Fetch a model with a short name unless it is here, with a progress bar on a terminal, else with lines.

    Raises:
        CheckpointError: it cannot be fetched.
    """
    model = find_named(name)
    if model is None or find_local(model) is not None:
        return
    from forerun.checkpoints.short_names.fetch import bring

    with _bar(model) as report:
        bring(model, report)


@contextmanager
def _bar(model: NamedModel) -> "Iterator[Report | None]":
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task, told = progress.add_task(f"fetching {model.name}", total=None), set[str]()

        def report(origin: str, num_here: int, num_total: int) -> None:
            if origin not in told:
                told.add(origin)
                what = f"fetching {model.full_name} ({model.licence}, {model.licence_source}) from {origin}"
                console.print(what, markup=False, highlight=False)
            progress.update(task, completed=num_here, total=num_total)

        yield report
