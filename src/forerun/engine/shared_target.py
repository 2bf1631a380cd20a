"""A target that several processes share: rank 0 is the engine's, and the others follow it."""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from forerun.backends.backend import Backend
from forerun.backends.choose import BackendChoice
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig, Exactness
from forerun.core.errors import RankLostError
from forerun.core.pace import read_device
from forerun.engine.model_loading import Checkpoint, Progress, find_device
from forerun.engine.rank_weights import rank_weights, shard_plans
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.runtime.inference import inference
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.follower import Follower, follow_leader
from forerun.sharding.followers import READY, Followers, call_at_end
from forerun.sharding.messages import HEADER, framed
from forerun.sharding.torch_group import host_store, join_store
from forerun.wires.forkserver import die_with_parent


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOpening:
    """What a leader tells a follower first.

    Args:
        memory: descriptor of the memory through which ranks exchange what they computed, see `Backend.group_memory`.
        port: of the loopback interface, where ranks without such memory find each other.
        capacity: slots of the cache.
    """

    num_ranks: int
    memory: int | None
    port: int
    capacity: int
    exactness: Exactness

    def to_message(self) -> bytes:
        return framed((), json.dumps(asdict(self)).encode())


def load_shared(
    checkpoint: Checkpoint,
    config: EngineConfig,
    choice: BackendChoice,
    *,
    capacity: int,
    num_threads: int,
    on_progress: Progress | None,
) -> Runner:
    """Start the other ranks, which end with the runner, and load this one's part.

    Raises:
        ConfigError: there are not as many devices.
        RankLostError: another rank could not be made ready.
    """
    num_ranks, device = config.target_ranks, read_device(config.device)
    plan, memory = shard_plans(checkpoint, num_ranks)[0], choice.backend.group_memory(num_ranks)
    followers = start_followers(config, memory, num_threads)
    store = host_store(num_ranks) if memory is None else None
    opening = GroupOpening(
        num_ranks=num_ranks,
        memory=memory,
        port=0 if store is None else store.port,
        capacity=capacity,
        exactness=config.exactness,
    )
    followers.send(opening.to_message())
    weights = rank_weights(checkpoint, config, plan, on_progress)
    followers.wait_until_ready()
    group = open_group(opening, store, 0, choice.backend, device.torch_device, followers.blame)
    followers.watch(group.lose)
    return Runner(
        plan.local(checkpoint.spec),
        weights,
        backend=choice.backend,
        capacity=capacity,
        dtype=checkpoint.dtype,
        device=device.torch_device,
        pace=device.target,
        cache_bytes=config.cache_bytes,
        make_executor=lambda _, whole, cache, unused: SharedExecutor(
            checkpoint.spec, whole, cache, unused, backend=choice.backend, plan=plan, group=group
        ),
        tell=followers.tell,
        on_close=followers.close,
    )


def start_followers(config: EngineConfig, memory: int | None, num_threads: int) -> Followers:
    """The processes of all other ranks, if every rank has a device."""
    for rank in range(config.target_ranks):
        find_device(device_of(read_device(config.device).torch_device, rank))
    return Followers(
        config.target_ranks,
        lambda *place: command(config, *place, num_threads=num_threads),
        inherited=() if memory is None else (memory,),
    )


def device_of(leaders: str, rank: int) -> str:
    """The device of a rank: GPUs are taken in order from the leader's on."""
    device = torch.device(leaders)
    return "cpu" if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"


def open_group(
    opening: GroupOpening, store: Any, rank: int, backend: Backend, device: str, blame: Callable[[], str | None]
) -> RankGroup:
    """A rank's end of the group, once all are ready."""
    if opening.memory is None:
        return backend.group(store, rank, opening.num_ranks, device=device, blame=blame)
    group = backend.host_group(opening.memory, rank, opening.num_ranks, blame)
    os.close(opening.memory)  # it is mapped
    return group


def command(config: EngineConfig, rank: int, descriptor: int, parent: int, *, num_threads: int) -> list[str]:
    """The command line of a follower."""
    device = read_device(config.device)
    return [
        sys.executable, "-P", "-m", "forerun", "worker", config.target,
        "--role", "target",
        "--target-ranks", str(config.target_ranks),
        "--rank", str(rank),
        "--dtype", config.dtype,
        "--weights", config.weights,
        "--kernels", config.kernels,
        "--device", device_of(device.torch_device, rank),
        "--threads", str(num_threads),
        "--cache-bytes", str(config.cache_bytes),
        "--control", str(descriptor),
        "--parent", str(parent),
    ]  # fmt: skip


def run_follower(config: EngineConfig, rank: int, descriptor: int, parent: int) -> None:
    """Load a part of the target and follow its leader, which holds the other end of the control socket `descriptor`."""
    if parent:
        die_with_parent(parent)
    control = socket.socket(fileno=descriptor)
    try:
        torch.set_num_threads(config.num_threads or 1)
        follow_leader(control, open_follower(config, rank, read_opening(control), control))
    except RankLostError:
        raise SystemExit(1) from None  # the leader knows, or is the one that was lost
    except Exception:
        control.sendall(traceback.format_exc()[-4000:].encode())
        raise


def read_opening(control: socket.socket) -> GroupOpening:
    """The leader's first message."""
    with control.makefile("rb", buffering=0) as stream:
        (num_bytes,) = HEADER.unpack(stream.read(HEADER.size))
        body = b""
        while len(body) < num_bytes:
            body += stream.read(num_bytes - len(body))
    return GroupOpening(**json.loads(body[HEADER.size :]))


def open_follower(config: EngineConfig, rank: int, opening: GroupOpening, control: socket.socket) -> Follower:
    """This rank's part of the target, once all ranks have met."""
    device = read_device(config.device).torch_device
    checkpoint = Checkpoint.open(open_source(config.target), config)
    plan, spec = shard_plans(checkpoint, opening.num_ranks)[rank], checkpoint.spec
    backend = checkpoint.choose_backend(config, opening.exactness).backend
    weights = rank_weights(checkpoint, config, plan)
    cache = TreeCache(
        plan.local(spec), opening.capacity, dtype=checkpoint.dtype, device=device, move_slots=backend.move_slots
    )
    store = join_store(opening.port, opening.num_ranks) if opening.memory is None else None
    control.sendall(READY)
    group = open_group(opening, store, rank, backend, device, lambda: None)
    call_at_end([control], group.lose)
    with inference():
        executor = SharedExecutor(spec, weights, cache, backend=backend, plan=plan, group=group)
    return Follower(cache, WarmTexts(cache, config.cache_bytes), executor)
