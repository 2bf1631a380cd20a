"""Opens the engine of a command, with a progress bar for its weights on a terminal, else with progress lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from forerun.checkpoints.source import CheckpointSource
from forerun.cli.failures import find_model, find_model_or_head
from forerun.cli.logs import note
from forerun.cli.progress import lines_of
from forerun.cli.streams import unechoed
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import Automatic, DrafterConfig, LayerSkip, Parallel, draft_name
from forerun.core.paths import cache_folder
from forerun.drafting.heads.stored import find_head
from forerun.drafting.layer_skip.set_files import read_found_sets, read_sets, sets_beside, sets_in_cache
from forerun.wires.endpoint import Address, read_key

if TYPE_CHECKING:
    from rich.progress import TaskID

    from forerun.engine.engine import Engine

OnProgress = Callable[[str, int, int], None]  # the file, how much of it is read, of how much
LONG_BYTES: Final = 32 << 20  # weights of this size take longer to load than everything else


@contextmanager
def open_engine(
    config: EngineConfig,
    *,
    is_traced: bool = False,
    num_threads: int | None = None,
    ranks_at: tuple[str, str] | None = None,
) -> Iterator["Engine"]:
    """The engine, closed afterwards.

    Args:
        is_traced: a drafter in a separate process reports when it worked.
        num_threads: number of threads if the config has none.
        ranks_at: address and key file for ranks of other hosts, in place of the config's.

    Raises:
        ModelNotFoundError: the target or the draft does not exist. This is raised before anything slow is imported.
        CheckpointError, ConfigError: a header, a file or an address cannot be read. This is raised at the same time.
    """
    source = find_model(config.target)
    if ranks_at is not None:
        config = replace(config, rank_address=ranks_at[0], rank_key_file=ranks_at[1])
    require_readable(config, source)
    config = replace(config, drafter=with_cache(config.drafter, source), num_threads=config.num_threads or num_threads)
    is_long = size_of(source.path) >= LONG_BYTES
    with loading_bar() if sys.stderr.isatty() else loading_lines(config.target, is_long=is_long) as show:
        from forerun.drafting.policies import Policies
        from forerun.engine.engine import Engine  # imports torch

        policies = Policies.of(config.drafter)
        policies = replace(policies, remote=replace(policies.remote, is_traced=is_traced))
        engine = Engine(config, policies=policies, on_progress=show)
    with engine:
        yield engine


@contextmanager
def loading_lines(model: str, *, is_long: bool) -> Iterator[OnProgress]:
    """Lines about loading: one at the start, one every ten seconds, and one at the end.

    Args:
        is_long: whether the model is large; for a small one, the lines at the start and the end are left out.
    """
    name = Path(model).name
    began = monotonic()
    if is_long:
        note(f"loading {name}")
    with lines_of(f"loading {name}", note) as say_more:
        yield lambda what, done, total: say_more(f", {100 * done // max(1, total)} % of {Path(what).name} read")
    if is_long:
        note(f"loaded {name} in {monotonic() - began:.1f} s")


def size_of(path: Path) -> int:
    """Bytes of a file, or of the weights in a folder."""
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def require_readable(config: EngineConfig, source: CheckpointSource) -> None:
    """Raise an error for a model, draft, address, key file or set file that cannot be used, before anything is loaded.

    Of models the headers are read.
    """
    source.spec()
    source.stored_dtype()
    if config.rank_address is not None:
        Address.parse(config.rank_address)
    if config.rank_key_file is not None:
        read_key(config.rank_key_file)
    if (draft := draft_name(config.drafter)) is not None and find_head(own := find_model_or_head(draft)) is None:
        own.spec()
        own.stored_dtype()
    match config.drafter:
        case Parallel(address=str(address), key_file=key_file):
            Address.parse(address)
            if key_file is not None:
                read_key(key_file)
        case LayerSkip(sets=str(sets)) | Parallel(draft=LayerSkip(sets=str(sets))):
            read_sets(Path(sets), source.spec().num_layers, source.identity())


def with_cache(drafter: DrafterConfig, source: CheckpointSource) -> DrafterConfig:
    """The drafter with its files in forerun's cache: what it has learnt, or the sets that `forerun prepare` wrote."""
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
    """The file of a model's skip sets in forerun's cache; None if it does not exist, or if one is next to the model."""
    if sets_beside(source.path).is_file():
        return None
    identity = source.identity()
    path = sets_in_cache(cache_folder(), identity)
    return str(path) if read_found_sets(path, source.spec().num_layers, identity) else None


@contextmanager
def loading_bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with unechoed(), Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, num_done: int, num_total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(Path(what).name, total=num_total)
            progress.update(tasks[what], completed=num_done)

        yield show
