"""An answer on its way from a replica to the client: as fast as it is read, and not for longer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum
from typing import Final, TypeAlias

from forerun.core.errors import ForerunError
from forerun.server.guard.gate import Message, Receive, Send
from forerun.server.protocol.errors import ApiError, stopping
from forerun.server.protocol.events import error_event

EVENTS: Final = b"text/event-stream"


class ReplicaLostError(ForerunError):
    """A replica ended, or does not answer any more."""


class NoReplicaError(ForerunError):
    """No replica can be started."""


class AnswerEnd(Enum):
    """What ends the reading of an answer beside its own end."""

    OVER = "over"
    LOST = "lost"
    GONE = "gone"
    SHUTDOWN = "shutdown"


Item: TypeAlias = Message | AnswerEnd


class Relay:
    """One answer on its way from a replica to the client.

    Args:
        max_unread: messages that the client is behind before it is given up.
        abort: ends the client's connection.
    """

    def __init__(self, send: Send, *, max_unread: int, abort: Callable[[], object]) -> None:
        self._send, self._max_unread, self._abort = send, max_unread, abort
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._is_begun = self._is_stream = False

    def put(self, item: Item) -> None:
        """Something to hand back, or the end of it."""
        self._items.put_nowait(item)
        if self._items.qsize() > self._max_unread:
            self._abort()

    def lose(self) -> None:
        """The replica is lost."""
        self.put(AnswerEnd.LOST)

    async def run(self, messages: AsyncIterator[Message], receive: Receive, request_id: str) -> None:
        """Hand back an answer to its end.

        Raises:
            ReplicaLostError: the replica was lost before the answer began.
        """
        tasks = [asyncio.create_task(self._read(messages)), asyncio.create_task(self._watch(receive))]
        tasks[0].add_done_callback(lambda _: self.lose())  # after the end nobody hears of it
        try:
            while not isinstance(item := await self._items.get(), AnswerEnd):
                await self._hand_back(item)
            await self._finish(item, request_id)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _hand_back(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._is_begun, self._is_stream = True, any(kind.startswith(EVENTS) for kind in kinds)
        await self._send(message)

    async def _finish(self, turn: AnswerEnd, request_id: str) -> None:
        """Say why an answer has no more; one that is no stream is cut short, so nobody takes it for whole."""
        if turn in (AnswerEnd.OVER, AnswerEnd.GONE):
            return
        error = stopping() if turn is AnswerEnd.SHUTDOWN else lost()
        if not self._is_begun:
            raise ReplicaLostError(error.message) if turn is AnswerEnd.LOST else error
        if self._is_stream:
            await self._send({"type": "http.response.body", "body": error_event(error, request_id)})

    async def _read(self, messages: AsyncIterator[Message]) -> None:
        with suppress(ReplicaLostError):
            async for message in messages:
                self.put(message)
            self.put(AnswerEnd.OVER)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.put(AnswerEnd.GONE)


def lost() -> ApiError:
    """An answer was begun, or another replica was lost too."""
    message = "The replica that wrote this answer was lost: try again."
    return ApiError(503, message, code="replica_lost", retry_after_s=1)
