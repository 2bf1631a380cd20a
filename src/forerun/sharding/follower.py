"""A rank that follows its leader's messages."""

import socket
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

from forerun.core.threads import inference
from forerun.model.executor import CacheMove, Executor, ForwardInput, TextMove
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.sharding.messages import ANSWER, Signal, ToFollower
from forerun.wires.channel import INTERNET


class Follower:
    """A rank's part of a model and its cache, which repeat every operation of the leader's."""

    def __init__(self, cache: TreeCache, texts: WarmTexts, executor: Executor) -> None:
        self._cache = cache
        self._texts = texts
        self._executor = executor

    def follow(self, told: ToFollower) -> None:
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
            case _:
                raise AssertionError(f"{told} belongs to the opening")

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


def follow_leader(control: socket.socket, messages: Iterator[ToFollower], follower: Follower) -> None:
    """Follow the leader's messages until it hangs up."""
    with inference():
        for told in answering(messages, control) if control.family in INTERNET else messages:
            follower.follow(told)


def answering(messages: Iterator[ToFollower], control: socket.socket) -> Iterator[ToFollower]:
    """The messages of a leader on another host, whose liveness checks are answered even during a pass."""
    others: SimpleQueue[ToFollower | None] = SimpleQueue()

    def read() -> None:
        try:
            for message in messages:
                if message is Signal.QUESTION:
                    control.sendall(ANSWER)
                else:
                    others.put(message)
        finally:
            others.put(None)

    Thread(target=read, name="leader", daemon=True).start()
    return iter(others.get, None)
