"""An answer as a stream of events, and detection of a client that disconnects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

from forerun.server.work.job import EarlyEnd, Job

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # makes nginx pass events on at once
}


class ClientWatch:
    """Ends a job when its client disconnects, in any phase of the job."""

    def __init__(self, receive: Receive, job: Job) -> None:
        self._receive = receive
        self._job = job
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop watching. If the job is still running, it is ended, since nobody reads it any more."""
        self._task.cancel()
        self._job.end(EarlyEnd.DISCONNECTED)

    async def _watch(self) -> None:
        with suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._job.end(EarlyEnd.DISCONNECTED)


class EventStream(Response):
    """A response that sends each event in one piece as soon as it is available.

    Args:
        events: the job's events as bytes.
        watch: ended with this response, which also ends the job.
    """

    def __init__(self, events: AsyncIterator[bytes], watch: ClientWatch, headers: dict[str, str]) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._watch.end()
