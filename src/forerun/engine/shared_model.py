"""A model that several processes share: rank 0 leads, and the others follow it.

The leader of a target is its engine, that of a draft the drafter's process.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

import forerun
from forerun.backends.backend import Backend
from forerun.backends.choose import BackendChoice
from forerun.core.affinity import run_on
from forerun.core.config import DTypeName, EngineConfig, Exactness
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace, read_device
from forerun.engine.model_loading import Checkpoint, Progress, find_device
from forerun.engine.rank_weights import rank_weights, shard_plans
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.followers import Followers, SharedRole
from forerun.sharding.joining import admit_ranks
from forerun.sharding.messages import Greeting, GroupOpening, to_frame
from forerun.sharding.torch_group import LOOPBACK, host_store
from forerun.wires.endpoint import Address, read_key


def load_shared(
    checkpoint: Checkpoint,
    config: EngineConfig,
    choice: BackendChoice,
    *,
    role: SharedRole,
    exactness: Exactness,
    capacity: int,
    pace: Pace | None,
    num_threads: int,
    cores: Sequence[int] = (),
    on_progress: Progress | None = None,
) -> Runner:
    """Start the other ranks, which end with the runner, and load this rank's part.

    Args:
        config: `target` is the model, and `target_ranks` its number of ranks.
        cores: cores of the ranks on this host; empty: any.

    Raises:
        ConfigError: there are too few devices.
        RankLostError: another rank could not be made ready.
    """
    plan = shard_plans(checkpoint, config.target_ranks)[0]
    followers = Followers(role)
    memory = None if config.remote_ranks else choice.backend.group_memory(config.target_ranks)
    try:
        run_on(cores, partial(gather, followers, config, memory, num_threads))
        store = host_store(config.target_ranks, followers.own_address() or LOOPBACK) if memory is None else None
        opening = opening_of(checkpoint, config, followers, memory, store, capacity=capacity, exactness=exactness)
        greeting = to_frame(Greeting(version=forerun.__version__))
        followers.tell_each(lambda rank: greeting + to_frame(replace(opening, rank=rank)))
        weights = rank_weights(checkpoint, plan, on_progress)
        followers.wait_until_ready()
        group = open_group(opening, store, choice.backend, checkpoint.device, opening.address, followers.blame)
        followers.watch(group.lose)
        return Runner(
            plan.local(checkpoint.spec),
            None,
            backend=choice.backend,
            capacity=capacity,
            dtype=checkpoint.dtype,
            device=checkpoint.device,
            pace=pace,
            cache_format=checkpoint.cache_format,
            cache_bytes=config.cache_bytes,
            make_executor=lambda cache: SharedExecutor(
                checkpoint.spec, weights, cache, backend=choice.backend, plan=plan, group=group
            ),
            tell=followers.tell,
            on_close=followers.close,
        )
    except BaseException:
        followers.close()
        raise
    finally:
        if memory is not None:
            os.close(memory)  # it is mapped, and the others have their own descriptors


def opening_of(
    checkpoint: Checkpoint,
    config: EngineConfig,
    followers: Followers,
    memory: int | None,
    store: Any,
    *,
    capacity: int,
    exactness: Exactness,
) -> GroupOpening:
    """The leader's settings, which all ranks must share."""
    return GroupOpening(
        model=checkpoint.source.identity(),
        device=torch.device(checkpoint.device).type,
        rank=0,
        num_ranks=config.target_ranks,
        memory=memory,
        address=followers.own_address() or LOOPBACK,
        port=0 if store is None else store.port,
        capacity=capacity,
        exactness=exactness,
        dtype=cast(DTypeName, str(checkpoint.dtype).removeprefix("torch.")),
        weights=config.weights,
        inputs=config.inputs,
        cache=checkpoint.cache_format,
        kernels="torch" if config.remote_ranks else config.kernels,
        cache_bytes=config.cache_bytes,
    )


def gather(followers: Followers, config: EngineConfig, memory: int | None, num_threads: int) -> None:
    """Start the other ranks on this host, if every rank has a device, then wait for those of other hosts."""
    num_here = config.target_ranks - config.remote_ranks
    device = read_device(config.device).torch_device
    require_devices(device, num_here)
    for rank in range(1, num_here):
        followers.start(
            rank,
            partial(command, config.target, device_of(device, rank), num_threads=num_threads),
            inherited=() if memory is None else (memory,),
        )
    if config.rank_address is not None:
        key = None if config.rank_key_file is None else read_key(config.rank_key_file)
        come = admit_ranks(Address.parse(config.rank_address), key, config.remote_ranks)
        for rank, control in enumerate(come, num_here):
            followers.admit(rank, control)


def require_devices(first: str, num_ranks: int) -> None:
    """Raise ConfigError unless every rank has a device."""
    for rank in range(num_ranks):
        try:
            find_device(device_of(first, rank))
        except ConfigError as error:
            how = f"each of {num_ranks} ranks needs its own device, from {first} on: "
            raise ConfigError(f"{how if rank else ''}{error}") from None


def device_of(first: str, rank: int) -> str:
    """The device of a rank: GPUs in order, starting at the first rank's."""
    device = torch.device(first)
    return "cpu" if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"


def open_group(
    opening: GroupOpening, store: Any, backend: Backend, device: str, address: str, blame: Callable[[], str | None]
) -> RankGroup:
    """Open a rank's end of the group; called once all ranks are ready.

    Args:
        address: of the interface by which the rank reaches the others.
    """
    rank = opening.rank
    num_ranks = opening.num_ranks
    if opening.memory is not None:
        return backend.host_group(opening.memory, rank, num_ranks, blame)
    return backend.group(store, rank, num_ranks, device=device, address=address, blame=blame)


def command(model: str, device: str, descriptor: int, parent: int, *, num_threads: int) -> list[str]:
    """The command line of a follower on its leader's host."""
    return [
        sys.executable, "-P", "-m", "forerun", "worker", model,
        "--role", "target",
        "--device", device,
        "--threads", str(num_threads),
        "--control", str(descriptor),
        "--parent", str(parent),
    ]  # fmt: skip
