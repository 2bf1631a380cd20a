"""An OpenAI-compatible server is measured over its completions endpoint; here a small real one on this host."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep
from typing import Any

import pytest

from forerun import SamplingParams
from forerun.bench.peers.endpoint_peer import EndpointPeer
from forerun.bench.peers.messages import PeerError

PARAMS = SamplingParams(max_new_tokens=4, temperature=0.5, top_k=3, seed=9, ignore_eos=True)
EVENTS: dict[str, list[dict[str, Any]]] = {
    "ids": [
        {"choices": [{"text": "", "token_ids": []}]},
        {"choices": [{"text": "ab", "token_ids": [5, 6]}], "usage": {"completion_tokens": 2}},
        {"choices": [{"text": "c", "token_ids": [7]}], "usage": {"completion_tokens": 3}},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ],
    "counts": [
        {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 2}},
        {"choices": [{"text": "c"}], "usage": {"completion_tokens": 3}},
    ],
    "one count": [
        {"choices": [{"text": "ab"}], "usage": None},
        {"choices": [{"text": "c"}]},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ],
    "no count": [{"choices": [{"text": "ab"}]}],
    "error": [{"error": {"message": "out of memory"}}],
}


class Handler(BaseHTTPRequestHandler):
    """Streams the events of the scenario its server was given, and keeps what it was asked."""

    server: "Server"

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, json.loads(body or "null")))
        if self.path != "/v1/completions":
            self.send_error(self.server.forget_status)
        elif self.server.scenario == "refuses":
            self.send_error(400, "prompt too long")
        elif self.server.scenario == "noise":
            self._answer(b"data: <html>\n\n")
        else:
            self._stream(EVENTS[self.server.scenario])

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write(b": still there\n\ndata: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
            sleep(0.02)
        self.wfile.write(b"data: [DONE]\n\n")


class Server(ThreadingHTTPServer):
    scenario = "ids"
    forget_status = 404

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def open_peer(server: Server, name: str = "vllm", suffix: str = "") -> EndpointPeer:
    return EndpointPeer(name, server.url + suffix, max_length=64)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_ids_and_times_of_each_event_are_kept(server: Server, suffix: str) -> None:
    turn = open_peer(server, suffix=suffix).write((1, 2), PARAMS)
    assert (turn.token_ids, turn.text, turn.num_new_tokens) == ((5, 6, 7), "abc", 3)
    assert turn.emitted == (2, 1)
    first, second = turn.emitted_at_s
    assert 0.0 < first < second <= turn.wall_s
    assert second - first > 0.01


def test_the_request_says_what_our_engine_would_do(server: Server) -> None:
    peer = open_peer(server)
    peer.write((1, 2), PARAMS)
    peer.close()
    ((path, body),) = server.asked
    expected = {"model": "tiny", "prompt": [1, 2], "max_tokens": 4, "temperature": 0.5, "top_k": 3, "seed": 9}
    flags = {"stream": True, "ignore_eos": True, "return_token_ids": True}
    assert path == "/v1/completions"
    assert (expected | flags).items() <= body.items()


@pytest.mark.parametrize(("scenario", "emitted"), [("counts", (2, 1)), ("one count", ())])
def test_a_server_without_ids_is_counted_by_its_usage(server: Server, scenario: str, emitted: tuple[int, ...]) -> None:
    server.scenario = scenario
    turn = open_peer(server, "sglang").write((1, 2), PARAMS)
    assert (turn.token_ids, turn.text, turn.num_new_tokens, turn.emitted) == ((), "abc", 3, emitted)
    assert len(turn.emitted_at_s) == len(emitted)
    assert turn.wall_s > 0.0


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("refuses", "400 prompt too long"),
        ("noise", "<html>"),
        ("no count", "neither tokens nor their number"),
        ("error", "out of memory"),
    ],
)
def test_what_a_server_gets_wrong_is_an_error(server: Server, scenario: str, words: str) -> None:
    server.scenario = scenario
    with pytest.raises(PeerError, match=words):
        open_peer(server).write((1, 2), PARAMS)


def test_a_cache_is_emptied_where_the_server_offers_it(server: Server) -> None:
    for name in ("vllm", "sglang"):
        open_peer(server, name).forget()
    assert [path for path, _ in server.asked] == ["/reset_prefix_cache", "/flush_cache"]
    server.forget_status = 500
    with pytest.raises(PeerError, match="500"):
        open_peer(server).forget()


def test_a_server_that_is_not_there_is_an_error() -> None:
    with Server() as server:
        url = server.url
    with pytest.raises(PeerError, match="is the server up"):
        EndpointPeer("vllm", url, max_length=64)
