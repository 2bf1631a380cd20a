"""An engine for a command, with a progress bar while its weights are read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.cli.failures import find_model
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftModel, Parallel

if TYPE_CHECKING:
    from rich.progress import TaskID

    from forerun.engine.engine import Engine


@contextmanager
def open_engine(config: EngineConfig) -> Iterator["Engine"]:
    """The engine, closed afterwards.

    Raises:
        ModelNotFoundError: the target or the draft does not exist; said before anything slow is imported.
    """
    find_model(config.target)
    match config.drafter:
        case DraftModel(model=draft) | Parallel(draft=DraftModel(model=draft), address=None):
            find_model(draft)
    from forerun.engine.engine import Engine  # imports torch

    with _load(Engine, config) as engine:
        yield engine


def _load(engine_class: type["Engine"], config: EngineConfig) -> "Engine":
    if not sys.stderr.isatty():
        return engine_class(config)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, num_done: int, num_total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(Path(what).name, total=num_total)
            progress.update(tasks[what], completed=num_done)

        return engine_class(config, on_progress=show)
