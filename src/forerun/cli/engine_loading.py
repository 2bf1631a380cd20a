"""An engine for a command, with a progress bar while its weights are read."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.checkpoints.source import CheckpointSource
from forerun.cli.failures import find_model
from forerun.cli.streams import unechoed
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import Automatic, DrafterConfig, DraftModel, LayerSkip, Parallel
from forerun.core.places import cache_folder
from forerun.drafting.layer_skip.set_files import read_found_sets, read_sets, sets_beside, sets_in_cache
from forerun.wires.endpoint import Address, read_key

if TYPE_CHECKING:
    from rich.progress import TaskID

    from forerun.engine.engine import Engine


@contextmanager
def open_engine(config: EngineConfig, *, is_traced: bool = False) -> Iterator["Engine"]:
    """The engine, closed afterwards.

    Args:
        is_traced: a drafter in a process of its own tells when it was at work.

    Raises:
        ModelNotFoundError: the target or the draft does not exist; said before anything slow is imported.
        ConfigError: so is a file or an address that cannot be read.
    """
    source = find_model(config.target)
    config = replace(config, drafter=with_cache(config.drafter, source))
    require_readable(config, source)
    from forerun.drafting.policies import Policies
    from forerun.drafting.remote.policy import RemotePolicy
    from forerun.engine.engine import Engine  # imports torch

    policies = replace(Policies.of(config.drafter), remote=RemotePolicy(is_traced=is_traced))
    with _load(partial(Engine, config, policies=policies)) as engine:
        yield engine


def require_readable(config: EngineConfig, source: CheckpointSource) -> None:
    """Complain of what ranks or a drafter need and cannot have, before anything is loaded."""
    if config.rank_address is not None:
        Address.parse(config.rank_address)
    if config.rank_key_file is not None:
        read_key(config.rank_key_file)
    match config.drafter:
        case DraftModel(model=draft) | Parallel(draft=DraftModel(model=draft), address=None):
            find_model(draft)
        case Parallel(address=str(address), key_file=key_file):
            Address.parse(address)
            if key_file is not None:
                read_key(key_file)
        case LayerSkip(sets=str(sets)) | Parallel(draft=LayerSkip(sets=str(sets))):
            read_sets(Path(sets), source.spec().num_layers, source.identity())


def with_cache(drafter: DrafterConfig, source: CheckpointSource) -> DrafterConfig:
    """The drafter with what forerun's cache has for it: what was learnt, or the sets that `forerun prepare` left."""
    match drafter:
        case Automatic(learnt=None):
            return replace(drafter, learnt=str(cache_folder() / "learnt"))
        case LayerSkip(sets=None):
            return replace(drafter, sets=prepared_sets(source))
        case Parallel(draft=LayerSkip(sets=None) as draft, address=None):
            return replace(drafter, draft=replace(draft, sets=prepared_sets(source)))
        case _:
            return drafter


def prepared_sets(source: CheckpointSource) -> str | None:
    """The file of a model's skip sets in forerun's cache; None where there is none, or another beside the model."""
    if sets_beside(source.path).is_file():
        return None
    identity = source.identity()
    path = sets_in_cache(cache_folder(), identity)
    return str(path) if read_found_sets(path, source.spec().num_layers, identity) else None


def _load(make: Callable[..., "Engine"]) -> "Engine":
    if not sys.stderr.isatty():
        return make()
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with unechoed(), Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, num_done: int, num_total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(Path(what).name, total=num_total)
            progress.update(tasks[what], completed=num_done)

        return make(on_progress=show)
