"""A rank that follows its leader's messages."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

from forerun.model.executor import Executor
from forerun.model.inputs import ForwardInput
from forerun.model.step import CacheMove, TextMove, Told
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.runtime.inference import inference
from forerun.sharding.messages import ANSWER, HEADER, read_message
from forerun.wires.channel import INTERNET


class Follower:
    """A rank's part of a model and its cache, which repeat every operation of the leader's."""

    def __init__(self, cache: TreeCache, texts: WarmTexts, executor: Executor) -> None:
        self._cache, self._texts, self._executor = cache, texts, executor

    def follow(self, told: Told) -> None:
        """Repeat an operation of the leader."""
        match told:
            case CacheMove():
                self._cache.move(told)
            case TextMove():
                self._move_text(told)
            case ForwardInput():
                if told.num_slots > self._cache.end:
                    self._cache.reserve(told.num_slots - self._cache.end)
                self._executor.run(told)

    def _move_text(self, told: TextMove) -> None:
        owner = told.owner or ""
        match told.kind:
            case "find":
                self._texts.find(told.token_ids, owner)
            case "save":
                self._texts.save(told.token_ids, owner)
            case "restore":
                self._texts.restore(told.token_ids, owner, told.start)
            case "forget":
                self._texts.forget(told.owner)


def follow_leader(control: socket.socket, follower: Follower) -> None:
    """Follow the leader's messages until it hangs up."""
    with control.makefile("rb") as stream:
        is_remote = control.family in INTERNET
        bodies = answering(stream, control) if is_remote else bodies_of(stream)
        with inference():
            for body in bodies:
                follower.follow(read_message(body))


def bodies_of(stream: BinaryIO) -> Iterator[bytes]:
    """The bodies of all messages."""
    with suppress(OSError):  # the leader ended without closing the connection
        while header := stream.read(HEADER.size):
            yield stream.read(*HEADER.unpack(header))


def answering(stream: BinaryIO, control: socket.socket) -> Iterator[bytes]:
    """The bodies of all messages of a leader on another host, whose liveness checks are answered even during a pass."""
    bodies: SimpleQueue[bytes | None] = SimpleQueue()

    def read() -> None:
        with suppress(OSError):
            for body in bodies_of(stream):
                if body:
                    bodies.put(body)
                else:
                    control.sendall(ANSWER)
        bodies.put(None)

    Thread(target=read, name="leader", daemon=True).start()
    return iter(bodies.get, None)
