"""Requests that are held open, and waiting for what becomes of them."""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.server.serving import ENGINE, Served

SLOW = replace(ENGINE, device="paced:target=10ms;draft=1ms")
LONG: dict[str, Any] = {"prompt": "def f(", "max_tokens": 1500, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "def f(", "max_tokens": 2, "ignore_eos": True}

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
KEYED = HEAD[:-2] + b"authorization: Bearer %s\r\n\r\n"


def until(condition: Callable[[], bool]) -> None:
    """Return once this holds; an error after half a minute, however busy the machine is."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def send(server: Served, asked: dict[str, Any], *, key: str | None = None) -> socket.socket:
    """A request on a socket of its own, whose answer nobody reads yet."""
    body = json.dumps(asked).encode()
    sock = socket.create_connection(server.address, timeout=30)
    sock.sendall((HEAD % len(body) if key is None else KEYED % (len(body), key.encode())) + body)
    return sock


def is_idle(server: Served) -> bool:
    return server.service.thread.running is None and len(server.service.queue) == 0
