"""Passes an answer from a replica to the client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Final, TypeAlias

from starlette.types import Message, Receive, Send

from forerun.core.errors import ForerunError
from forerun.fleet.continuing import SENT, Continuing, Sent
from forerun.server.protocols.errors import ApiError, stopping
from forerun.server.protocols.registered import protocol_at
from forerun.server.protocols.sse import COMMENT
from forerun.server.work.job import Mark

EVENTS: Final = b"text/event-stream"
OK: Final = 200


class ReplicaLostError(ForerunError):
    """A replica's process has ended or no longer answers."""


class ReplicaSilentError(ReplicaLostError):
    """A replica no longer answers, perhaps because its machine is lost; a request cannot be the cause."""


class ReplicaRefusesError(ReplicaLostError):
    """A replica that should continue an answer does not accept it now."""


class NoReplicaError(ForerunError):
    """No replica can be started."""


class AnswerEnd(Enum):
    """Why an answer ends: it is complete, the replica is lost or does not answer, the client has left, or the server
    shuts down."""

    OVER = "over"
    LOST = "lost"
    SILENT = "silent"
    GONE = "gone"
    SHUTDOWN = "shutdown"


Item: TypeAlias = Message | AnswerEnd


class Relay:
    """Passes one answer from a replica to the client.

    If the replica is lost within a stream that may be continued, another replica's answer to the same request continues
    it: see `forerun.fleet.continuing`.

    Args:
        path: of the request; its protocol has its own format for errors.
        ping_s: seconds between comments that keep the connection open while there is nothing new to send.
        max_unread: how many messages the client may fall behind before its connection is closed.
        abort: closes the client's connection.
        continuing: the data for continuing the answer, if it may be continued.
    """

    def __init__(
        self,
        send: Send,
        *,
        path: str,
        ping_s: float,
        max_unread: int,
        abort: Callable[[], object],
        continuing: Continuing | None = None,
    ) -> None:
        self._send = send
        self._ping_s = ping_s
        self._max_unread = max_unread
        self._abort = abort
        self._protocol = protocol_at(path)
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._goes_on = False  # it continues an answer, and nothing new was sent yet
        self.is_begun = self._is_stream = False
        self._continuing = continuing
        self._sent = list[Sent]()
        self._end: asyncio.Future[AnswerEnd] = asyncio.get_running_loop().create_future()  # independent of the replica

    @property
    def continuing(self) -> Continuing | None:
        """The data with which another replica can continue; None if the answer may not be continued."""
        return None if self._continuing is None else replace(self._continuing, sent=tuple(self._sent))

    @property
    def num_sent(self) -> int:
        """How many sent events were recorded."""
        return len(self._sent)

    def put(self, item: Item) -> None:
        """Add a message for the client, or the reason for the end."""
        self._items.put_nowait(item)
        if item in (AnswerEnd.GONE, AnswerEnd.SHUTDOWN) and not self._end.done():
            self._end.set_result(item)
        if self._items.qsize() > self._max_unread:
            self._abort()

    def lose(self) -> None:
        """The replica does not answer."""
        self.put(AnswerEnd.SILENT)

    async def run(self, messages: AsyncIterator[Message], receive: Receive, request_id: str) -> None:
        """Pass on the answer until it ends.

        Raises:
            ReplicaLostError: the replica was lost before the answer began, or within one that may be continued.
        """
        self._items = asyncio.Queue()
        self._goes_on = self.is_begun
        tasks = [asyncio.create_task(self._read(messages)), asyncio.create_task(self._watch(receive))]
        tasks[0].add_done_callback(lambda _: self.put(AnswerEnd.LOST))  # has no effect after the answer's end
        try:
            while not isinstance(item := await self._next(), AnswerEnd):
                await self._hand_back(item)
            await self._finish(item, request_id)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def pause(self, until: Coroutine[Any, Any, None], receive: Receive) -> None:
        """Wait for this between two replicas, at most until the client leaves or the server shuts down."""
        tasks = [asyncio.create_task(until), asyncio.create_task(self._watch(receive))]
        waiting: list[asyncio.Future[Any]] = [*tasks, self._end]
        try:
            while not (await asyncio.wait(waiting, timeout=self._ping_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                await self._ping()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def end_early(self, request_id: str) -> bool:
        """End the answer if the client has left or the server shuts down. Returns whether that is so."""
        if self._end.done():
            await self._finish(self._end.result(), request_id)
        return self._end.done()

    async def _next(self) -> Item:
        """The next message, or the end. While the sent part is written again, pings keep the connection open."""
        while self._goes_on:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ping_s):
                    return await self._items.get()
            await self._ping()
        return await self._items.get()

    async def _ping(self) -> None:
        if self._is_stream:
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})

    async def _hand_back(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.is_begun:
                if message["status"] != OK:
                    raise ReplicaRefusesError("the replica that should continue an answer refuses it")
                return
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self.is_begun = True
            self._is_stream = any(kind.startswith(EVENTS) for kind in kinds)
        sent = message.pop(SENT, ())
        await self._send(message)
        self._goes_on = False
        self._sent += sent

    async def _finish(self, turn: AnswerEnd, request_id: str) -> None:
        """Report why the answer ends early. An answer that is not a stream is cut off, so that it is not complete."""
        if turn in (AnswerEnd.OVER, AnswerEnd.GONE):
            return
        if self._sent[-1:] == [Mark.OVER]:
            await self._send({"type": "http.response.body", "body": b""})
            return
        error = stopping() if turn is AnswerEnd.SHUTDOWN else lost()
        is_lost = turn in (AnswerEnd.LOST, AnswerEnd.SILENT)
        if is_lost and (not self.is_begun or (self._is_stream and self._continuing is not None)):
            raise (ReplicaLostError if turn is AnswerEnd.LOST else ReplicaSilentError)(error.message)
        await self.fail(error, request_id)

    async def fail(self, error: ApiError, request_id: str) -> None:
        """End the answer with an error."""
        if not self.is_begun:
            raise error
        if self._is_stream:
            body = self._protocol.error_event(error, request_id)
            await self._send({"type": "http.response.body", "body": body})

    async def _read(self, messages: AsyncIterator[Message]) -> None:
        with suppress(ReplicaLostError, NoReplicaError):
            async for message in messages:
                self.put(message)
            self.put(AnswerEnd.OVER)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.put(AnswerEnd.GONE)


def lost() -> ApiError:
    """The error for a lost replica, when the request cannot be sent to another one."""
    message = "The process that generated this answer has ended: try again."
    return ApiError(503, message, code="replica_lost", retry_after_s=1)
