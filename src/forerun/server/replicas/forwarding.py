"""Forwards requests to replicas."""

from typing import Final

from forerun.server.guard.connection import ABORT
from forerun.server.guard.gate import Receive, Scope, Send
from forerun.server.protocols.errors import stopping
from forerun.server.replicas.fleet import Fleet
from forerun.server.replicas.relay import AnswerEnd, Relay, ReplicaLostError, lost
from forerun.server.replicas.sessions import session_of

KEPT: Final = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
MAX_TRIES: Final = 2  # a request that crashes a replica must not be sent to all of them


class Forwarder:
    """An ASGI app that forwards every request to a replica."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.is_draining = fleet, False
        self._open: set[Relay] = set()

    def end_all(self) -> None:
        """End all open requests with an error."""
        for relay in self._open:
            relay.put(AnswerEnd.SHUTDOWN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_draining:
            raise stopping()
        body, config, state = await whole(receive), self._fleet.config, scope["state"]
        session = session_of(state["owner"], dict(scope["headers"]), body, max_json_depth=config.max_json_depth)
        handed_on = {name: scope[name] for name in KEPT if name in scope}
        handed_on["headers"] = list(scope["headers"])
        handed_on["state"] = {name: state[name] for name in ("owner", "request_id")} | {"front": self._fleet.front}
        for _ in range(MAX_TRIES):
            relay = Relay(send, path=scope["path"], max_unread=config.max_unread_events, abort=state.get(ABORT, bool))
            self._open.add(relay)
            try:
                with self._fleet.visit(session, on_lost=relay.lose) as link:
                    await relay.run(link.replica.answer(handed_on, body), receive, state["request_id"])
                    return
            except ReplicaLostError:
                continue
            finally:
                self._open.discard(relay)
        raise lost()


async def whole(receive: Receive) -> bytes:
    """The body of a request, whose size the gate limits; incomplete if the client left."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return b"".join(parts)
