"""What every request passes before a route sees it: name, host, origin, key, size, time."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from forerun.server.config import ServerConfig
from forerun.server.guard.keys import KeyRing
from forerun.server.protocol.errors import ApiError, internal

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
OPEN_PATHS: Final = frozenset(("/", "/health", "/ready"))  # the page asks its user for the key
OPEN_FOLDER: Final = "/page/"
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PLAIN_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
MAX_TARGET_BYTES: Final = 4096


class Gate:
    """Refuses what no route should see, and gives every answer a request id.

    The path is judged as the request has it, and everything that is not named open needs the key: an address that is
    put together from headers decides nothing.
    """

    def __init__(self, app: App, config: ServerConfig, *, is_loopback: bool) -> None:
        self._app, self._config, self._keys = app, config, KeyRing(config.api_keys)
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in config.allowed_hosts}
        self._checks_host = is_loopback or bool(config.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if REQUEST_ID.fullmatch(given) else uuid4().hex
        answer = GuardedAnswer(send, request_id)
        try:
            scope["state"]["owner"] = self._admit(scope, headers)
            scope["state"]["request_id"] = request_id
            await self._app(scope, self._bounded(receive), answer.send)
        except ApiError as error:
            await answer.refuse(error)
        except Exception:
            logger.exception("request %s failed", request_id)
            await answer.refuse(internal())

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Whose request this is; raises ApiError where it must not come in."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_host and host_name(host) not in self._hosts:
            raise ApiError(403, "This server does not answer to that Host.", code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own(origin.decode("latin-1").lower(), host):
            raise ApiError(403, "Pages of that origin may not use this server.", code="origin_not_allowed")
        owner = self._keys.owner(headers.get(b"authorization"))
        path = scope["path"]
        is_open = scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
        if owner is None and not is_open:
            raise ApiError(401, "A valid API key is needed: Authorization: Bearer KEY.", code="invalid_api_key")
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise ApiError(414, "The request's address is too long.", code="address_too_long")
        self._require_body(scope["method"], headers)
        return owner or ""

    def _is_own(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        parts = urlsplit(origin) if origin.startswith(("http://", "https://")) else None
        return parts is not None and host != "" and parts.netloc == host

    def _require_body(self, method: str, headers: dict[bytes, bytes]) -> None:
        """A body is JSON, and says no length beyond the limit."""
        if method != "POST":
            return
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            raise too_large(self._config.max_body_bytes)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and (length != b"0" or b"transfer-encoding" in headers):
            raise ApiError(415, "The body must be JSON: Content-Type: application/json.", code="unsupported_media_type")

    def _bounded(self, receive: Receive) -> Receive:
        """The request's body, of which there is neither more nor later than the limits say."""
        loop = asyncio.get_running_loop()
        deadline, num_bytes, is_whole = loop.time() + self._config.body_s, 0, False

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
            if num_bytes > self._config.max_body_bytes:
                raise too_large(self._config.max_body_bytes)
            return message

        return receive_bounded


class GuardedAnswer:
    """An answer with the headers that every one has, and at most one beginning."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id, self._is_begun = send, request_id, False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_begun = True
            own = {name for name, _ in message["headers"]}
            added = [(b"x-request-id", self._request_id.encode()), *PLAIN_HEADERS]
            if b"cache-control" not in own:
                added.append((b"cache-control", b"no-store"))
            message["headers"] = [*message["headers"], *added]
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error, unless an answer was begun: that one is cut short, so nobody takes it for whole."""
        if self._is_begun:
            return
        body = error.json(self._request_id)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
        if error.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The request's body has more than {max_bytes} bytes.", code="request_too_large")


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
