"""forerun worker: a process that drafts for a target in another process."""

import os
from typing import Annotated, Final, Literal, TypeAlias

import typer

from forerun.cli.declare import option, with_flags_of, with_options
from forerun.cli.drafter_options import read_cores
from forerun.cli.failures import find_model, say, shows_errors
from forerun.cli.options import SHOWN, engine_settings
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, NoDrafter
from forerun.core.errors import ConfigError
from forerun.core.sublayers import read_skips, require_skippable

Role: TypeAlias = Literal["draft", "target"]
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@with_flags_of(
    EngineConfig, panel=None, shown=SHOWN,
    only=("dtype", "weights", "device", "max_length", "kernels", "num_threads", "cache_bytes", "target_ranks"),
)  # fmt: skip
class WorkerOptions:
    """What a worker computes in, and on what."""


@shows_errors
@with_options(WorkerOptions)
def worker(
    machine: WorkerOptions,
    model: Annotated[str, typer.Argument(help="The draft model: folder, GGUF file or hub name.")] = BUILTIN_DRAFT,
    listen: Annotated[
        str | None, option("--listen", help="HOST:PORT to serve targets on; a key is needed beyond this host.")
    ] = None,
    key_file: Annotated[str | None, option("--key-file", help="File with the key shared with the targets.")] = None,
    cores: Annotated[str | None, option("--cores", help="CPU cores to stay on, such as 2,3.")] = None,
    skip: Annotated[str, option("--skip", help="Sublayers to leave out, such as attention:3,5;mlp:4.")] = "",
    role: Annotated[Role, typer.Option("--role", hidden=True)] = "draft",
    rank: Annotated[int, typer.Option("--rank", hidden=True)] = 0,
    control: Annotated[int | None, typer.Option("--control", hidden=True)] = None,
    parent: Annotated[int, typer.Option("--parent", hidden=True)] = 0,
) -> None:
    """Draft for a target in another process, on this host or another one. An engine starts its own by itself."""
    if listen is None and control is None:
        raise ConfigError("a worker needs an address to serve targets on: say --listen 127.0.0.1:7070")
    given = {"num_threads": 1} | engine_settings(machine) | ({} if role == "target" else {"target_ranks": 1})
    config = EngineConfig(target=model, drafter=NoDrafter(), **given)
    if role == "target" and control is not None:
        from forerun.engine.shared_target import run_follower  # imports torch

        run_follower(config, rank, control, parent)
        return
    unused = read_skips(skip)
    require_skippable(unused, find_model(model).spec().num_layers)
    if control is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # libraries must start no threads before the fork
    from forerun.engine.drafter_process import DrafterProcess  # imports torch
    from forerun.wires.endpoint import Address, read_key

    process = DrafterProcess(
        config=config, max_length=config.max_length, cores=read_cores(cores, flag="--cores"), unused=unused
    )
    if control is not None:
        process.under_engine(control, parent)
    elif listen is not None:
        key = None if key_file is None else read_key(key_file)
        process.listen(Address.parse(listen), key, lambda bound: say(f"forerun: {model} drafts for targets on {bound}"))
