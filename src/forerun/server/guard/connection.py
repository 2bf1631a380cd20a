"""A connection to the server: how long it may take, and how many there may be."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

ABORT: Final = "abort"  # in a request's state: ends its connection at once


class BoundedConnection(H11Protocol):
    """uvicorn's connection with limits that it lacks: the time for a request's head, and the number of connections.

    A connection too many is closed without a word: an answer would cost what the limit is to save.
    """

    header_s: float = 10.0
    max_connections: int = 512

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request()
        super().data_received(data)
        if self._request() is not before:
            self._forget_head()
        elif self._head_timer is None and self._is_idle():
            self._expect_head()

    def _request(self) -> Any:
        """The newest request; None before the first."""
        return self.cycle

    def _is_idle(self) -> bool:
        request = self._request()
        return request is None or bool(request.response_complete)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.header_s, self._give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and self._is_idle():
            self.transport.abort()


def connection_class(*, header_s: float, max_connections: int) -> type[Any]:
    """The class of connections with these limits, as uvicorn wants it."""
    limits = {"header_s": header_s, "max_connections": max_connections}
    return type("LimitedConnection", (BoundedConnection,), limits)
