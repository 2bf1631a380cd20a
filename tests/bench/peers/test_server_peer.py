"""Servers are measured over HTTP: small real ones on this host, and llama-server where there is one.

FORERUN_LLAMA_SERVER is a command that starts it; else it is looked for on the path and in the package xllamacpp.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from forerun import SamplingParams
from forerun_lab.bench.peers.catalogue import open_peer
from forerun_lab.bench.peers.messages import PeerError, PeerPlan, PeerRequest
from forerun_lab.bench.peers.server_peer import ServerWriter, command_of
from tests.bench.peers.pairs import Pair, check_end_of_text, check_greedy, check_sampling, opened

XLLAMACPP = shlex.join([sys.executable, str(Path(__file__).with_name("xllamacpp_server.py"))])
LLAMA_SERVER = (
    os.environ.get("FORERUN_LLAMA_SERVER")
    or shutil.which("llama-server")
    or (XLLAMACPP if find_spec("xllamacpp") else None)
)
NEEDS_LLAMA_SERVER = pytest.mark.skipif(LLAMA_SERVER is None, reason="there is no llama-server")
PLAN = PeerPlan(target="target", dtype="bfloat16", num_threads=3, max_length=64)
PARAMS = SamplingParams(max_new_tokens=4, temperature=0.5, top_k=3, seed=9, ignore_eos=True)
REQUEST = PeerRequest.of((1, 2), PARAMS, max_length=64)
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
    "timings": [
        {"choices": [{"text": "ab"}], "timings": {"predicted_n": 2}},
        {"choices": [{"text": "c"}], "timings": {"predicted_n": 3}},
        {"choices": [{"text": ""}], "timings": {"predicted_n": 3}, "usage": {"completion_tokens": 3}},
    ],
    "one count": [
        {"choices": [{"text": "ab"}], "usage": None},
        {"choices": [{"text": "c"}]},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ],
    "llama-server": [
        {"content": "ab", "tokens": [5, 6], "stop": False},
        {"content": "c", "tokens": [7], "stop": False},
        {"content": "", "tokens": [], "stop": True},
    ],
    "no count": [{"choices": [{"text": "ab"}]}],
    "error": [{"error": {"message": "out of memory"}}],
}


class Handler(BaseHTTPRequestHandler):
    """Streams the events of the scenario its server was given, and keeps what it was asked."""

    server: "Server"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send_error(404)
        else:
            self._answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, json.loads(body or "null")))
        if not self.path.endswith("/completions" if self.server.scenario != "llama-server" else "/completion"):
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
            sleep(0.05)
        self.wfile.write(b"data: [DONE]\n\n")


class Server(ThreadingHTTPServer):
    scenario = "ids"
    forget_status = 404

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
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


def peer_of(server: Server, kind: str = "vllm", suffix: str = "") -> ServerWriter:
    return ServerWriter(replace(PLAN, name=kind, urls={kind: server.url + suffix}), kind)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_ids_and_times_of_each_event_are_kept(server: Server, suffix: str) -> None:
    check_turn(peer_of(server, suffix=suffix))


def test_llama_server_sends_ids_in_its_own_form(server: Server) -> None:
    server.scenario = "llama-server"
    peer = peer_of(server, "llama_server")
    check_turn(peer)
    peer.forget()
    peer.write(replace(REQUEST, top_k=0))
    peer.write(REQUEST)
    assert [body["cache_prompt"] for _, body in server.asked] == [True, False, True]
    assert [body["top_k"] for _, body in server.asked] == [3, 0, 3]
    assert server.asked[0][1]["samplers"] == ["temperature", "top_k", "top_p", "min_p"]


def check_turn(peer: ServerWriter) -> None:
    turn = peer.write(REQUEST)
    assert (turn.token_ids, turn.text, turn.num_new_tokens, turn.num_prompt_tokens) == ((5, 6, 7), "abc", 3, 2)
    assert turn.emitted == (2, 1)
    first, second = turn.emitted_at_s
    assert 0.0 < first < second <= turn.wall_s
    assert second - first > 0.01


def test_the_request_says_what_our_engine_would_do(server: Server) -> None:
    peer = peer_of(server)
    peer.write(REQUEST)
    peer.close()
    ((path, body),) = server.asked
    expected = {"model": "tiny", "prompt": [1, 2], "max_tokens": 4, "temperature": 0.5, "top_k": 3, "seed": 9}
    flags = {"stream": True, "ignore_eos": True, "return_token_ids": True}
    assert path == "/v1/completions"
    assert (expected | flags).items() <= body.items()


@pytest.mark.parametrize(("scenario", "emitted"), [("counts", (2, 1)), ("timings", (2, 1)), ("one count", ())])
def test_a_server_without_ids_is_counted_by_its_usage(server: Server, scenario: str, emitted: tuple[int, ...]) -> None:
    server.scenario = scenario
    turn = peer_of(server, "sglang").write(REQUEST)
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
        peer_of(server).write(REQUEST)


def test_a_cache_is_emptied_where_the_server_offers_it(server: Server) -> None:
    for kind in ("vllm", "sglang"):
        peer_of(server, kind).forget()
    assert [path for path, _ in server.asked] == ["/reset_prefix_cache", "/flush_cache"]
    server.forget_status = 500
    with pytest.raises(PeerError, match="500"):
        peer_of(server).forget()


def command(kind: str, **changes: Any) -> str:
    return shlex.join(command_of(replace(PLAN, name=kind, **changes), kind))


def test_a_server_is_started_with_our_model_threads_length_and_dtype() -> None:
    flags = command("llama_server")
    assert flags.startswith("llama-server --model target --host 127.0.0.1 --port '{port}'")
    assert "--threads 3 --threads-batch 3" in flags
    assert "--ctx-size 64 --gpu-layers 0" in flags
    assert "--cache-type-k bf16 --cache-type-v bf16" in flags
    assert command("llama_server", mode="default").endswith(" --spec-default")
    assert command("ik_llama_server", mode="suffix", commands={"ik_llama_server": "x"}).endswith(" --spec-type suffix")
    assert "vllm serve target --host 127.0.0.1 --port '{port}' --dtype bfloat16 --max-model-len 64" in command("vllm")
    assert "--dtype bfloat16 --context-length 64" in command("sglang")


def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(packed_pair: Pair, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho no such luck\nexit 7\n")
    program.chmod(0o755)
    plan = replace(packed_pair.plan, commands={"llama_server": str(program)})
    with pytest.raises(PeerError, match="ended with status 7; its last words:\nno such luck"):
        open_peer("llama_server", plan, {})


@NEEDS_LLAMA_SERVER
@pytest.mark.parametrize("name", ["llama_server", "llama_server_draft", "llama_server_lookup"])
def test_llama_server_writes_our_ids(packed_pair: Pair, name: str) -> None:
    with opened(name, replace(packed_pair.plan, commands={name: str(LLAMA_SERVER)})) as peer:
        check_greedy(peer, packed_pair)
        check_sampling(peer, packed_pair)


@NEEDS_LLAMA_SERVER
def test_llama_server_ends_a_text_as_we_do(packed_pair: Pair) -> None:
    plan = packed_pair.plan
    target = str(Path(plan.target).with_name("ending.gguf"))
    with opened("llama_server", replace(plan, target=target, commands={"llama_server": str(LLAMA_SERVER)})) as peer:
        check_end_of_text(peer, packed_pair)


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
