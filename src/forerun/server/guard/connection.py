"""Connections to the server, with limits on their time and number."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.server.config import ServerConfig
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.registered import error_body

ABORT: Final = "abort"  # key in the state of uvicorn for a function that closes a connection at once; the gate reads it
FIRST_LOOK_S: Final = 0.05  # after the client's EOF, until the first check whether it is still connected
LOOK_GROWTH: Final = 4  # the time between checks grows by this factor, so a client that stays gets only a few
MAX_LOOK_S: Final = 15.0


class BoundedConnection(H11Protocol):
    """uvicorn's connection with additional limits: the time to send a request's headers, the time without reading an
    answer, and the number of connections, in total and per client address.

    A connection over the limit is closed without an answer, since sending one would cost what the limit should save.
    """

    limits: ServerConfig
    held: Counter[str]  # open connections of this server by client address

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
        num_own = self.held[self._holder]
        limits = self.limits
        if len(self.connections) > limits.max_connections or num_own > limits.max_connections_per_client:
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
        """The client has closed its sending side: it has left, or it still waits for the answer. TCP cannot distinguish
        these until something is sent to the client.
        """
        request = self._request()
        if self._is_idle() or request.more_body or request.scope["http_version"] == "1.0":
            return False  # no answer is due, or the client does not support interim responses
        if not self._is_half_closed:
            self._is_half_closed = True
            self._look_later(FIRST_LOOK_S)
        return True

    def _look(self, waited_s: float) -> None:
        """Send an interim response, which every client ignores. If the client has left, its system answers with a
        reset, so the next write fails and the connection ends. A stream needs no interim responses: its events do the
        same.
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
        self._unread_timer = self.loop.call_later(self.limits.unread_s, self.transport.abort)

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
        """Answer invalid HTTP with 400 and close. A request in progress is marked as disconnected, which uvicorn does
        not do: it would let the request run and then fail to send the answer.
        """
        request = self._request()
        if request is not None and not request.response_complete:
            request.disconnected = True
            request.message_event.set()
        body = error_body(
            invalid("This is not a valid HTTP request.", code="bad_http"), path="", request_id=uuid4().hex
        )
        headers = [
            ("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close"),
        ]  # fmt: skip
        with suppress(h11.LocalProtocolError):  # an answer has begun, or may not have a body
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                head = h11.Response(status_code=400, headers=headers, reason="Bad Request")
                for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _request(self) -> Any:
        """The newest request, or None before the first."""
        return self.cycle

    def _is_idle(self) -> bool:
        request = self._request()
        return request is None or bool(request.response_complete)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_s, self._give_up)

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
    """A connection class with one server's limits, for uvicorn."""
    return type("LimitedConnection", (BoundedConnection,), {"limits": config, "held": Counter()})
