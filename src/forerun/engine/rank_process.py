"""The main program of a rank that follows a leader, which is on the same host or on another one."""

import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from time import sleep
from typing import TypeVar

import torch

import forerun
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.core.errors import RankLostError, require
from forerun.core.threads import inference
from forerun.engine.model_loading import Checkpoint
from forerun.engine.rank_weights import rank_weights, shard_plans
from forerun.engine.shared_model import open_group
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.follower import Follower, follow_leader
from forerun.sharding.followers import call_at_end
from forerun.sharding.joining import join_leader
from forerun.sharding.messages import GAVE_UP, READY, Greeting, GroupOpening, Signal, ToFollower, messages_from
from forerun.sharding.torch_group import join_store
from forerun.wires.channel import INTERNET
from forerun.wires.children import END_S, die_with_parent
from forerun.wires.endpoint import Address

MessageT = TypeVar("MessageT")


def run_started(config: EngineConfig, descriptor: int, parent: int) -> None:
    """Run as a rank of a leader on this host, which holds the other end of the control socket `descriptor`."""
    if parent:
        die_with_parent(parent)
    run_rank(config, socket.socket(fileno=descriptor))


def run_joining(config: EngineConfig, address: Address, key: bytes | None) -> None:
    """Run as a rank of a leader on another host, once it listens."""
    run_rank(config, join_leader(address, key))


def run_rank(config: EngineConfig, control: socket.socket) -> None:
    """Load a part of a model and follow the leader until it hangs up."""
    try:
        torch.set_num_threads(config.num_threads or 1)
        messages = messages_from(control)
        opening = read_opening(messages)
        follow_leader(control, messages, open_follower(opening.config(config), opening, control, messages))
    except RankLostError:
        with suppress(OSError):  # the leader itself may be lost
            control.sendall(GAVE_UP)
        raise SystemExit(1) from None
    except Exception:
        with suppress(OSError):  # the other side may have ended, or may not be a leader
            control.sendall(traceback.format_exc()[-4000:].encode())
        raise


def end_without_leader(group: RankGroup) -> None:
    """End the running pass, then this process, because a pass may hang in torch waiting for a stopped rank."""
    group.lose()
    sleep(END_S)
    os._exit(1)


def read_opening(messages: Iterator[ToFollower]) -> GroupOpening:
    """The leader's first messages.

    Raises:
        RankLostError: the leader hung up.
        ConfigError: the leader has another version.
    """
    theirs = expect(messages, Greeting).version
    ours = forerun.__version__
    require(
        theirs == ours,
        f"the leader runs forerun {theirs}, and this rank runs {ours}: install the same version on all hosts",
    )
    return expect(messages, GroupOpening)


def expect(messages: Iterator[ToFollower], kind: type[MessageT]) -> MessageT:
    message = next(messages, None)
    if not isinstance(message, kind):
        raise RankLostError("the leader has closed the connection")
    return message


def open_follower(
    config: EngineConfig, opening: GroupOpening, control: socket.socket, messages: Iterator[ToFollower]
) -> Follower:
    """Load this rank's part of the model, and connect with the other ranks."""
    checkpoint = Checkpoint.open(open_source(config.target), config)
    device = checkpoint.device
    kind = torch.device(device).type
    ours = checkpoint.source.identity()
    require(kind == opening.device, f"the leader runs on {opening.device}: set device {opening.device}, not {device!r}")
    require(ours == opening.model, f"model {config.target} is not the leader's: give the same model on all hosts")
    plan = shard_plans(checkpoint, opening.num_ranks)[opening.rank]
    spec = checkpoint.spec
    backend = checkpoint.choose_backend(opening.exactness).backend
    weights = rank_weights(checkpoint, plan)
    cache = TreeCache(
        plan.local(spec),
        opening.capacity,
        dtype=checkpoint.dtype,
        device=device,
        format=checkpoint.cache_format,
        move_slots=backend.move_slots,
    )
    store = join_store(opening.address, opening.port, opening.num_ranks) if opening.memory is None else None
    control.sendall(READY)
    if next(messages, None) is not Signal.GO:
        raise RankLostError("the leader has ended")
    address = control.getsockname()[0] if control.family in INTERNET else opening.address
    group = open_group(opening, store, backend, device, address, lambda: None)
    if opening.memory is not None:
        os.close(opening.memory)  # the memory is mapped
    call_at_end([control], partial(end_without_leader, group))
    with inference():
        executor = SharedExecutor(spec, weights, cache, backend=backend, plan=plan, group=group)
    return Follower(cache, WarmTexts(cache, config.cache_bytes), executor)
