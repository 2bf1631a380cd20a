"""A connection to the server: how long it may take, and how many there may be."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.server.config import ServerConfig
from forerun.server.protocol.errors import invalid

ABORT: Final = "abort"  # in a request's state: ends its connection at once
FIRST_LOOK_S: Final = 0.05  # from the end of what a client sends to the first look whether it is still there
LOOK_GROWTH: Final = 4  # each look comes after so many times the time of the one before: few are sent to who stays
MAX_LOOK_S: Final = 15.0


class BoundedConnection(H11Protocol):
    """uvicorn's connection with limits that it lacks: the time for a request's head, the time in which nobody reads an
    answer, and the number of connections, of all clients and of one address.

    A connection too many is closed without a word: an answer would cost what the limit is to save.
    """

    header_s: float = 10.0
    unread_s: float = 60.0
    max_connections: int = 512
    max_connections_per_client: int = 256
    held: Counter[str]  # by address, of all connections of a server

    _head_timer: asyncio.TimerHandle | None = None
    _holder: str | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _look_timer: asyncio.TimerHandle | None = None
    _is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._holder = self.client[0] if self.client else ""
        self.held[self._holder] += 1
        if len(self.connections) > self.max_connections or self.held[self._holder] > self.max_connections_per_client:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        if self._holder is not None:
            self.held[self._holder] -= 1
            if not self.held[self._holder]:
                del self.held[self._holder]
        self._forget_unread()
        if self._look_timer is not None:
            self._look_timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it left, or it waits for the answer to all that it sent. TCP says the same of both,
        until something is sent to it.
        """
        request = self._request()
        if self._is_idle() or request.more_body or request.scope["http_version"] == "1.0":
            return False  # nothing is to be answered, or the client knows no interim answers
        if not self._is_half_closed:
            self._is_half_closed = True
            self._look_later(FIRST_LOOK_S)
        return True

    def _look(self, waited_s: float) -> None:
        """Send an interim answer, which every client reads past. The system of one that left answers with a reset, and
        so the next one fails, which ends the connection. The events of a stream do the same.
        """
        request = self._request()
        if not request.response_started and not request.response_complete:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim) or b"")
        self._look_later(min(LOOK_GROWTH * waited_s, MAX_LOOK_S))

    def _look_later(self, after_s: float) -> None:
        self._look_timer = self.loop.call_later(after_s, self._look, after_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_half_closed and self._is_idle():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget_unread()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        before = self._request()
        super().data_received(data)
        if self._request() is not before:
            self._forget_head()
        elif self._head_timer is None and self._is_idle():
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, and close. A request that they were to be the rest of has lost its client:
        uvicorn lets it go on, and then fails to send its answer.
        """
        request = self._request()
        if request is not None and not request.response_complete:
            request.disconnected = True
            request.message_event.set()
        body = invalid("This is no HTTP request.", code="bad_http").json(uuid4().hex)
        headers = [
            ("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close"),
        ]  # fmt: skip
        with suppress(h11.LocalProtocolError):  # an answer was begun, or may have no body
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                head = h11.Response(status_code=400, headers=headers, reason="Bad Request")
                for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

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

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and self._is_idle():
            self.transport.abort()


def connection_class(config: ServerConfig) -> type[Any]:
    """The class of one server's connections, as uvicorn wants it."""
    shared = {
        "header_s": config.header_s,
        "unread_s": config.unread_s,
        "max_connections": config.max_connections,
        "max_connections_per_client": config.max_connections_per_client,
        "held": Counter(),
    }
    return type("LimitedConnection", (BoundedConnection,), shared)
