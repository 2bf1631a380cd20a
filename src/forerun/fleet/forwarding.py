"""Forwards requests to replicas."""

import asyncio
import logging
from secrets import randbits
from time import monotonic, time
from typing import Final
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from forerun.fleet.continuing import Continuing
from forerun.fleet.fleet import Fleet
from forerun.fleet.homes import session_of
from forerun.fleet.relay import (
    AnswerEnd,
    Relay,
    ReplicaLostError,
    ReplicaRefusesError,
    ReplicaSilentError,
    lost,
)
from forerun.fleet.replica import ForwardedState
from forerun.server.guard.refusal_log import in_a_line
from forerun.server.protocols.errors import ApiError, stopping
from forerun.server.protocols.registered import BY_PATH
from forerun.server.request_state import RequestState, state_of

logger = logging.getLogger(__name__)

KEPT: Final = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
MAX_CRASHES: Final = 2  # a request that crashes a replica must not be sent to all of them
MAX_TRIES: Final = 10
REFUSED_S: Final = 1.0  # before a replica that refused to continue an answer is asked again
RETRY_HEADER: Final = b"x-forerun-retry"
SAFE: Final = b"safe"


class Forwarder:
    """An ASGI app that forwards every request to a replica."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.is_draining = False
        self._open: set[Relay] = set()

    def end_all(self) -> None:
        """End all open requests with an error."""
        for relay in self._open:
            relay.put(AnswerEnd.SHUTDOWN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_draining:
            raise stopping()
        body = await whole(receive)
        config = self._fleet.config.server
        state = state_of(scope)
        headers = dict(scope["headers"])
        session = session_of(state.owner, headers, body, max_json_depth=config.max_json_depth)
        handed_on = {name: scope[name] for name in KEPT if name in scope}
        handed_on["headers"] = list(scope["headers"])
        relay = Relay(
            send,
            path=scope["path"],
            ping_s=config.ping_s,
            max_unread=config.max_unread_events,
            abort=state.abort,
            continuing=new_continuing() if headers.get(RETRY_HEADER) == SAFE else None,
        )
        self._open.add(relay)
        began_s = monotonic()
        try:
            name = await self._forward(relay, handed_on, state, body, receive, session)
            if name and scope["path"] in BY_PATH:
                about = f"{scope['path']} (request {state.request_id}): {name}, {monotonic() - began_s:.1f} s"
                logger.info("%s", in_a_line(about))
        except ApiError as error:
            await relay.fail(error, state.request_id)
        finally:
            self._open.discard(relay)

    async def _forward(
        self, relay: Relay, scope: Scope, state: RequestState, body: bytes, receive: Receive, session: str
    ) -> str:
        """Let a replica answer, or another one if it is lost; return the name of the one that has answered.

        The name is empty if the client has left, or the server shuts down.
        """
        num_crashes = 0
        num_before = 0
        link = None
        began_s = monotonic()
        for _ in range(MAX_TRIES):
            try:
                if relay.is_begun:
                    await relay.pause(self._fleet.some_ready(), receive)
                if await relay.end_early(state.request_id):
                    return ""
                with self._fleet.visit(session, but=link, on_lost=relay.lose) as link:
                    left_s = max(0.0, self._fleet.config.server.max_request_s - (monotonic() - began_s))
                    forwarded = ForwardedState(
                        owner=state.owner,
                        request_id=state.request_id,
                        front=self._fleet.front,
                        max_s=left_s,
                        continuing=relay.continuing,
                    )
                    answer = link.replica.answer(scope, forwarded, body)
                    await relay.run(answer, receive, state.request_id)
                    return self._fleet.name_of(link)
            except ReplicaRefusesError:
                await relay.pause(asyncio.sleep(REFUSED_S), receive)
            except ReplicaLostError as error:
                num_crashes = num_crashes if relay.num_sent == num_before else 0
                num_crashes += not isinstance(error, ReplicaSilentError)
                num_before = relay.num_sent
                if num_crashes >= MAX_CRASHES:
                    break
                if relay.is_begun:
                    logger.warning("another replica continues request %s", state.request_id)
            except ApiError as error:
                raise (lost() if relay.is_begun else error) from None
        raise lost()


def new_continuing() -> Continuing:
    """The data with which another replica can continue an answer."""
    return Continuing(key=uuid4().hex, created_s=int(time()), seed=randbits(63))


async def whole(receive: Receive) -> bytes:
    """The body of a request, whose size the gate limits; incomplete if the client left."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return b"".join(parts)
