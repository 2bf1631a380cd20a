"""Clients that say with their request that they send no more, and those that leave: both end their sending first."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.holding import HEAD, LONG, SHORT, SLOW, is_idle, send, until
from tests.server.serving import Served, events_of, served


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """An engine whose answers take longer than the server waits before it looks whether a client is there."""
    with served(SLOW) as running:
        yield running


def answer_of(sock: socket.socket) -> tuple[int, str]:
    """Status and text, as Python's own client reads them."""
    with http.client.HTTPResponse(sock) as answer:
        answer.begin()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("num_tokens", [2, 150])
@pytest.mark.parametrize("stream", [True, False])
def test_who_sends_no_more_gets_the_answer(slow: Served, stream: bool, num_tokens: int) -> None:
    asked = {**SHORT, "max_tokens": num_tokens, "stream": stream}
    with slow.client() as client:
        whole = client.post("/v1/completions", json={**asked, "stream": False}).json()["choices"][0]["text"]
    with send(slow, asked) as sock:
        sock.shutdown(socket.SHUT_WR)
        status, text = answer_of(sock)
        assert status == 200
        bodies = [json.loads(event) for event in events_of(text)[:-1]] if stream else [json.loads(text)]
        assert "".join(choice["text"] for body in bodies for choice in body["choices"]) == whole
        assert sock.recv(1) == b"", "nothing can follow, so the server closes too"


def test_who_sends_no_more_while_others_are_served_gets_the_answer(slow: Served) -> None:
    with send(slow, {**LONG, "max_tokens": 150}), send(slow, SHORT) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert answer_of(sock)[0] == 200


def test_several_requests_may_come_before_that(slow: Served) -> None:
    request = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(slow.address, timeout=60) as sock:
        sock.sendall(request * 3)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while more := sock.recv(65536):
            received += more
    assert received.count(b"HTTP/1.1 200") == 3


def test_a_request_that_is_not_whole_ends_there(slow: Served) -> None:
    with socket.create_connection(slow.address, timeout=60) as sock:
        sock.sendall(HEAD % 1000 + b"{")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
    until(lambda: is_idle(slow))


@pytest.mark.parametrize("asked", [{**LONG, "stream": True}, LONG, {**LONG, "prompt": list(range(100, 1900))}])
def test_who_sends_no_more_and_then_leaves_frees_the_engine(slow: Served, asked: dict[str, Any]) -> None:
    with send(slow, asked) as sock:
        sock.shutdown(socket.SHUT_WR)
        until(lambda: slow.service.thread.running is not None)
    until(lambda: is_idle(slow))


def test_a_client_of_the_old_protocol_is_taken_for_gone(slow: Served) -> None:
    """It knows no interim answers, by which the server could find out whether it is there."""
    body = json.dumps(LONG).encode()
    with socket.create_connection(slow.address, timeout=60) as sock:
        sock.sendall((HEAD % len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        until(lambda: slow.service.thread.running is not None)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
    until(lambda: is_idle(slow))
