"""Forwards requests to replicas."""

import logging
from secrets import randbits
from time import time
from typing import Final
from uuid import uuid4

from forerun.server.guard.connection import ABORT
from forerun.server.guard.gate import Receive, Scope, Send
from forerun.server.protocols.errors import ApiError, stopping
from forerun.server.replicas.fleet import Fleet
from forerun.server.replicas.relay import AnswerEnd, Relay, ReplicaLostError, ReplicaSilentError, lost
from forerun.server.replicas.sessions import session_of
from forerun.server.work.continuing import CONTINUING, Continuing

logger = logging.getLogger(__name__)

KEPT: Final = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
MAX_CRASHES: Final = 2  # a request that crashes a replica must not be sent to all of them
MAX_TRIES: Final = 10
RETRY_HEADER: Final = b"x-forerun-retry"
SAFE: Final = b"safe"


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
        headers = dict(scope["headers"])
        session = session_of(state["owner"], headers, body, max_json_depth=config.max_json_depth)
        handed_on = {name: scope[name] for name in KEPT if name in scope}
        handed_on["headers"] = list(scope["headers"])
        handed_on["state"] = {name: state[name] for name in ("owner", "request_id")} | {"front": self._fleet.front}
        relay = Relay(
            send, path=scope["path"], max_unread=config.max_unread_events, abort=state.get(ABORT, bool),
            continuing=new_continuing() if headers.get(RETRY_HEADER) == SAFE else None,
        )  # fmt: skip
        self._open.add(relay)
        try:
            await self._forward(relay, handed_on, body, receive, session)
        except ApiError as error:
            await relay.fail(error, state["request_id"])
        finally:
            self._open.discard(relay)

    async def _forward(self, relay: Relay, scope: Scope, body: bytes, receive: Receive, session: str) -> None:
        """Let a replica answer, or another one if it is lost."""
        num_crashes, before, link = 0, relay.continuing, None
        for _ in range(MAX_TRIES):
            try:
                if relay.is_begun:
                    await self._fleet.some_ready()
                with self._fleet.visit(session, but=link, on_lost=relay.lose) as link:
                    asked = {**scope, "state": {**scope["state"], CONTINUING: relay.continuing}}
                    await relay.run(link.replica.answer(asked, body), receive, scope["state"]["request_id"])
                    return
            except ReplicaLostError as error:
                num_crashes = num_crashes if relay.continuing == before else 0
                num_crashes += not isinstance(error, ReplicaSilentError)
                before = relay.continuing
                if num_crashes >= MAX_CRASHES:
                    break
                if relay.is_begun:
                    logger.warning("request %s goes on at another replica", scope["state"]["request_id"])
        raise lost()


def new_continuing() -> Continuing:
    """What an answer needs to be continued by another replica."""
    return Continuing(key=uuid4().hex, created_s=int(time()), seed=randbits(63))


async def whole(receive: Receive) -> bytes:
    """The body of a request, whose size the gate limits; incomplete if the client left."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return b"".join(parts)
