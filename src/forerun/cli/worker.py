"""forerun worker: a process that drafts for a target in another process."""

import os
from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias

import typer

from forerun.cli.drafter_options import read_cores
from forerun.cli.failures import find_model, say
from forerun.cli.flags import option, with_flags_of, with_options
from forerun.cli.options import SHOWN, engine_config
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, NoDrafter
from forerun.core.errors import require
from forerun.core.sublayers import read_skips, require_skippable

Role: TypeAlias = Literal["draft", "target"]
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@with_flags_of(
    EngineConfig,
    panel=None,
    shown=SHOWN,
    only=(
        "dtype",
        "weights",
        "inputs",
        "cache",
        "device",
        "max_length",
        "kernels",
        "num_threads",
        "cache_bytes",
        "pack_in_memory",
    ),
)
class WorkerOptions:
    """Number formats, device and memory of a worker."""


@with_options(WorkerOptions)
def worker(
    machine: WorkerOptions,
    model: Annotated[
        str, typer.Argument(help="The draft model, or the target: folder, GGUF file or hub name.")
    ] = BUILTIN_DRAFT,
    listen: Annotated[
        str | None, option("--listen", help="HOST:PORT to serve targets on; other hosts need a key.")
    ] = None,
    key_file: Annotated[str | None, option("--key-file", help="File with the key shared with the targets.")] = None,
    ranks: Annotated[int, option("--ranks", help="Processes that share the draft model, all on this host.")] = 1,
    role: Annotated[
        Role, typer.Option("--role", help="Draft for targets, or be a rank of a target that several hosts share.")
    ] = "draft",
    join: Annotated[
        str | None, typer.Option("--join", help="HOST:PORT of the target's leader, its --rank-address.")
    ] = None,
    cores: Annotated[str | None, option("--cores", help="CPU cores to run on, such as 2,3.")] = None,
    skip: Annotated[str, option("--skip", help="Sublayers to skip, such as attention:3,5;mlp:4.")] = "",
    control: Annotated[int | None, typer.Option("--control", hidden=True)] = None,
    parent: Annotated[int, typer.Option("--parent", hidden=True)] = 0,
) -> None:
    """Draft for a target in another process, on this host or another one. An engine starts its own workers.

    With --role target, it is a rank of a target that several hosts share.
    """
    unused = read_skips(skip)
    require_matching(role, listen=listen, join=join, ranks=ranks, skips=bool(unused), is_started=control is not None)
    # A draft's rounding changes no token.
    config = engine_config(machine, target=model, drafter=NoDrafter(), target_ranks=ranks, num_threads=1, inputs="int8")
    if role == "target":
        run_rank(config, join, key_file, control, parent)
        return
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


def require_matching(
    role: Role, *, listen: str | None, join: str | None, ranks: int, skips: bool, is_started: bool
) -> None:
    """Raise ConfigError for flags that do not go together.

    Args:
        is_started: by an engine or a leader, which holds the other end of a control socket.
    """
    if role == "target":
        require(
            is_started or join is not None,
            "a rank needs the address of its leader (its --rank-address): use --join HOST:PORT",
        )
        require(
            listen is None and ranks == 1 and not skips,
            "--listen, --ranks and --skip are for workers that draft: leave them out, or use --role draft",
        )
        return
    require(
        is_started or listen is not None,
        "a worker needs an address to serve targets on: use --listen 127.0.0.1:7070",
    )
    require(join is None, "--join is for ranks of a target: leave it out, or use --role target")
    require(not skips or ranks == 1, "--skip works with one rank only: leave it out, or use --ranks 1")


def run_rank(config: EngineConfig, join: str | None, key_file: str | None, control: int | None, parent: int) -> None:
    """Run as a rank of a model until its leader ends."""
    from forerun.engine.rank_process import run_joining, run_started  # imports torch
    from forerun.engine.shared_model import device_of
    from forerun.wires.endpoint import Address, read_key

    if control is not None:
        run_started(config, control, parent)
        return
    assert join is not None, "a rank that is not started by its leader joins it"
    # torchrun starts a process for each GPU and numbers those of a host.
    device = device_of(config.device, int(os.environ.get("LOCAL_RANK", "0")))
    key = None if key_file is None else read_key(key_file)
    run_joining(replace(config, device=device), Address.parse(join), key)
