"""An engine for a command, with a progress bar while its weights are read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.checkpoints.config import read_model_spec
from forerun.checkpoints.identity import model_identity
from forerun.cli.failures import find_model
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftModel, LayerSkip, Parallel
from forerun.drafting.layer_skip.set_files import read_sets
from forerun.engine.profile import Profile
from forerun.wires.endpoint import Address, read_key

if TYPE_CHECKING:
    from rich.progress import TaskID

    from forerun.engine.engine import Engine


@contextmanager
def open_engine(config: EngineConfig) -> Iterator["Engine"]:
    """The engine, closed afterwards.

    Raises:
        ModelNotFoundError: the target or the draft does not exist; said before anything slow is imported.
        ConfigError: so is a file or an address that cannot be read.
    """
    require_readable(config, find_model(config.target))
    from forerun.engine.engine import Engine  # imports torch

    with _load(Engine, config) as engine:
        yield engine


def require_readable(config: EngineConfig, folder: Path) -> None:
    """Complain of what a drafter needs and cannot have, and of a profile of other models, before anything is loaded."""
    draft: str | None = None
    match config.drafter:
        case DraftModel(model=draft) | Parallel(draft=DraftModel(model=draft), address=None):
            find_model(draft)
        case Parallel(address=str(address), key_file=key_file):
            Address.parse(address)
            if key_file is not None:
                read_key(key_file)
        case LayerSkip(sets=str(sets)) | Parallel(draft=LayerSkip(sets=str(sets))):
            read_sets(Path(sets), read_model_spec(folder).num_layers, model_identity(folder))
    if config.profile is not None:
        Profile.read(Path(config.profile)).require_for(config.target, draft)


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
