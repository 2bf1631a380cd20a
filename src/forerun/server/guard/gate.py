"""Checks on every request before it reaches a route: host, origin, key, size, time."""

import asyncio
import ipaddress
import json
import logging
import re
from contextlib import suppress
from typing import Final
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.config import ServerConfig
from forerun.server.guard.connection import ABORT
from forerun.server.guard.keys import KeyRing
from forerun.server.guard.refusal_log import RefusalLog
from forerun.server.protocols.errors import ApiError, internal
from forerun.server.protocols.registered import BY_PATH, error_body
from forerun.server.request_state import STATE, RequestState, cannot_abort

logger = logging.getLogger(__name__)

Headers = dict[bytes, bytes]

LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
OPEN_PATHS: Final = frozenset(
    ("/", "/health", "/v1/health", "/livez", "/ready")
)  # the page itself asks the user for a key
OPEN_FOLDER: Final = "/page/"
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PLAIN_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, *"),  # OpenAI's browser client sends a dozen headers
    (b"access-control-max-age", b"600"),
)
READABLE: Final = b"x-request-id, retry-after, x-should-retry, x-forerun-ignored"  # headers for pages of other sites
REFUSALS: Final = range(400, 600)
MAX_SHOWN: Final = 100  # characters of a path in the log
MAX_TARGET_BYTES: Final = 4096
MAX_DIGITS: Final = 20  # of a content length that are parsed; any number with more digits is also too large
LINGER_BYTES: Final = 8 * 2**20  # of a too long body that are still read: if closed early, the answer can be lost


class Gate:
    """Refuses invalid and unauthorised requests, and adds a request id to every answer.

    All paths need the key unless they are listed as open. The check uses the path of the request line, never a URL
    built from headers.

    Args:
        is_loopback: the server listens on loopback only.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, *, is_loopback: bool) -> None:
        self._app = app
        self._config = config
        self._keys = KeyRing(config.api_keys)
        self._hosts = HostNames(config, is_loopback=is_loopback)
        self._refusals = RefusalLog()
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: Headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if REQUEST_ID.fullmatch(given) else uuid4().hex
        origin = headers.get(b"origin", b"")
        is_foreign = origin.decode("latin-1").lower() in self._origins
        allowed = origin if is_foreign else None
        answer = GuardedAnswer(send, request_id, path=scope["path"], allowed_origin=allowed)
        try:
            await self._answer(scope, receive, answer, headers, is_foreign=is_foreign)
        finally:
            if answer.refusal and scope["path"] not in OPEN_PATHS:  # these are polled while the model loads
                path = scope["raw_path"].decode("latin-1")[:MAX_SHOWN]
                self._refusals.log(f"{scope['method']} {path}: {answer.refusal} (request {request_id})")

    async def _answer(
        self, scope: Scope, receive: Receive, answer: "GuardedAnswer", headers: Headers, *, is_foreign: bool
    ) -> None:
        request_id = answer.request_id
        try:
            self._require_neighbour(headers)
            if is_foreign and scope["method"] == "OPTIONS":
                await answer.allow()
                return
            abort = scope.get("state", {}).get(ABORT, cannot_abort)
            state = RequestState(owner=self._owner(scope, headers), request_id=request_id, abort=abort)
            self._require_small(scope, headers)
            # HEAD is handled as GET; uvicorn leaves out the body.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            await self._app(
                {**scope, "method": method, STATE: state}, self._bounded(receive, self._max_bytes(scope)), answer.send
            )
        except ApiError as error:
            await answer.refuse(error)
        except ClientDisconnect:  # while it sent the body, so no client is left to read an answer
            return
        except Exception:
            logger.exception("request %s failed", request_id)
            await answer.refuse(internal())

    def _require_neighbour(self, headers: Headers) -> None:
        """Raise ApiError for a Host or Origin header that belongs to another site."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._hosts.has(host):
            raise ApiError(
                403, "This server does not accept that Host header: see --allowed-host.", code="host_not_allowed"
            )
        origin = headers.get(b"origin")
        if origin is None:
            return
        name = origin.decode("latin-1").lower()
        is_own = host != "" and name in (f"http://{host}", f"https://{host}")
        if not is_own and name not in self._origins:
            raise ApiError(
                403, "Pages of that origin may not use this server: see --allowed-origin.", code="origin_not_allowed"
            )

    def _owner(self, scope: Scope, headers: Headers) -> str:
        """The owner of the request by its key. Raises ApiError if the key is missing or wrong."""
        owner = self._keys.owner(headers)
        path = scope["path"]
        is_open = scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
        if owner is None and not is_open:
            raise ApiError(
                401, "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.", code="invalid_api_key"
            )
        return owner or ""

    def _require_small(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError if the URL is too long, the body is not declared as JSON, or its declared length too large."""
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise ApiError(414, "The request's URL is too long.", code="address_too_long")
        if scope["method"] != "POST":
            return
        length = headers.get(b"content-length", b"0")
        max_bytes = self._max_bytes(scope)
        if length.isdigit() and int(length[:MAX_DIGITS]) > max_bytes + LINGER_BYTES:
            raise too_large(max_bytes)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and (length != b"0" or b"transfer-encoding" in headers):
            raise ApiError(415, "The body must be JSON: Content-Type: application/json.", code="unsupported_media_type")

    def _max_bytes(self, scope: Scope) -> int:
        """The limit on the body's size."""
        is_for_text = scope["path"] in BY_PATH
        return self._config.max_prompt_body_bytes if is_for_text else self._config.max_body_bytes

    def _bounded(self, receive: Receive, max_bytes: int) -> Receive:
        """`receive` with the limits on the body's size and time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.body_s
        num_bytes = 0
        is_whole = False

        async def receive_bounded() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "The request's body took too long.", code="request_timeout") from None
            if message["type"] != "http.request":
                return message
            is_whole = not message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes > max_bytes:
                if not is_whole:
                    await discard(receive, deadline)
                raise too_large(max_bytes)
            return message

        return receive_bounded


class HostNames:
    """The names that a server accepts in the Host header.

    This protects against DNS rebinding: another site can let its own name resolve to this machine, so that its page's
    requests count as same-origin, but their Host header still has that name. With a key the attack gains nothing, so a
    public server with a key need not list its names.
    """

    def __init__(self, config: ServerConfig, *, is_loopback: bool) -> None:
        self._names = LOOPBACK_NAMES | {host.lower() for host in config.allowed_hosts}
        self._takes_addresses = not is_loopback
        self._takes_all = not is_loopback and bool(config.api_keys) and not config.allowed_hosts

    def has(self, host: str) -> bool:
        """True if the Host header, given in lower case, is accepted."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return self._takes_all or name in self._names or (self._takes_addresses and is_address(name))


class GuardedAnswer:
    """Sends an answer with the common headers, and starts at most one answer per request.

    Args:
        path: of the request; its protocol has its own format for errors.
        allowed_origin: another site whose pages may read the answer.
    """

    def __init__(self, send: Send, request_id: str, *, path: str, allowed_origin: bytes | None) -> None:
        self._send = send
        self.request_id = request_id
        self._path = path
        self._is_begun = False
        self._error_status: int | None = None
        self.refusal = ""  # status and reason if the answer is one of our errors
        self._added = [(b"x-request-id", request_id.encode()), *PLAIN_HEADERS]
        if allowed_origin is not None:
            self._added += [
                (b"access-control-allow-origin", allowed_origin),
                (b"access-control-expose-headers", READABLE),
                (b"vary", b"origin"),
            ]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_begun = True
            own = {name for name, _ in message["headers"]}
            cache = [] if b"cache-control" in own else [(b"cache-control", b"no-store")]
            message["headers"] = [*message["headers"], *self._added, *cache]
            self._error_status = message["status"] if message["status"] in REFUSALS else None
        elif self._error_status is not None:
            reason = reason_of(message.get("body", b""))
            self.refusal = f"{self._error_status} {reason}" if reason else ""
            self._error_status = None
        await self._send(message)

    async def allow(self) -> None:
        """Answer a CORS preflight request."""
        await self.send({"type": "http.response.start", "status": 204, "headers": list(PREFLIGHT)})
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error. If an answer has begun, it is cut off instead, so that it does not look complete."""
        if self._is_begun:
            return
        body = error_body(error, path=self._path, request_id=self.request_id)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


def reason_of(body: bytes) -> str:
    """Code and message of one of our errors, from this process or a replica; empty if the body is something else."""
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        place = error.get("param") or ""
        message = error["message"]
        return (
            f"{error.get('code') or error['type']}: {message if message.startswith(place) else f'{place}: {message}'}"
        )
    return ""


async def discard(receive: Receive, deadline: float) -> None:
    """Read the rest of a body up to a limit, so that the client finishes sending and reads the answer."""
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while num_bytes < LINGER_BYTES:
                message = await receive()
                if not message.get("more_body", False):
                    return
                num_bytes += len(message["body"])


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The request's body has more than {max_bytes} bytes.", code="request_too_large")


def is_address(name: str) -> bool:
    """True for an IP address, which cannot be the domain name of another site."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
