"""Clients that leave, wait, crowd and read slowly; a server that ends; an engine that fails."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from time import sleep

import pytest

from forerun import Engine, EngineConfig, NumericalError, RankLostError, SamplingParams
from forerun.core.stop_flag import require_wanted
from forerun.engine.stream import GenerationStream
from forerun.model.executor import ForwardInput, ForwardOutput, Observer
from forerun.server.guard import refusal_log
from tests.server.holding import HEAD, LONG, SHORT, SLOW, is_idle, send, until
from tests.server.serving import Served, events_of, served


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """An engine whose passes take long enough to be interrupted."""
    with served(SLOW) as running:
        yield running


def num_written(server: Served) -> float:
    value = server.service.metrics.registry.get_sample_value("forerun:generation_tokens_total")
    assert value is not None
    return value


def num_ended(server: Served, reason: str) -> float:
    labels = {"finished_reason": reason}
    return server.service.metrics.registry.get_sample_value("forerun:request_success_total", labels) or 0.0


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while more := sock.recv(65536):
        received += more
    return received


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_text_is_written_frees_the_engine(slow: Served, stream: bool) -> None:
    before = num_written(slow)
    with send(slow, {**LONG, "stream": stream}) as sock:
        until(lambda: slow.service.thread.running is not None)
        if stream:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    until(lambda: is_idle(slow))
    until(lambda: before < num_written(slow) < before + LONG["max_tokens"])  # what was written for nobody counts too
    with slow.client() as client:
        assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_client_that_leaves_while_its_prompt_is_read_frees_the_engine(slow: Served) -> None:
    before = num_ended(slow, "disconnected")
    for _ in range(5):
        with send(slow, {**LONG, "prompt": list(range(100, 1900)), "max_tokens": 100}):
            until(lambda: slow.service.thread.running is not None)
        until(lambda: is_idle(slow))
    assert num_ended(slow, "disconnected") == before + 5


def test_a_client_that_leaves_ends_the_pass_in_progress() -> None:
    with served() as server:
        executor = server.service.engine._target.executor
        run = executor.run
        in_pass = threading.Event()

        def endless(inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
            in_pass.set()
            while True:
                require_wanted()
                sleep(0.001)

        executor.run = endless  # type: ignore[method-assign]
        with send(server, {**SHORT, "prompt": list(range(100, 500))}):
            assert in_pass.wait(60)
        until(lambda: is_idle(server))
        executor.run = run  # type: ignore[method-assign]
        assert server.service.is_ready
        with server.client() as client:
            assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_client_that_leaves_while_it_waits_leaves_the_queue(slow: Served) -> None:
    with send(slow, LONG):
        until(lambda: slow.service.thread.running is not None)
        running = slow.service.thread.running
        with send(slow, SHORT):
            until(lambda: len(slow.service.queue) == 1)
        until(lambda: len(slow.service.queue) == 0)
        assert slow.service.thread.running is running
    until(lambda: is_idle(slow))


def test_no_job_is_remembered_once_it_is_over(slow: Served) -> None:
    until(lambda: is_idle(slow))
    until(lambda: not slow.service._jobs)


def test_too_many_requests_are_told_when_to_come_back() -> None:
    with served(SLOW, max_queued=2) as server, server.client() as client:
        held = [send(server, LONG)]
        until(lambda: server.service.thread.running is not None)
        for number in (1, 2):
            held.append(send(server, SHORT))
            until(lambda number=number: len(server.service.queue) == number)  # type: ignore[misc]
        answer = client.post("/v1/completions", json=SHORT)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.headers["x-should-retry"] == "true"
        held[0].close()
        for sock in held[1:]:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")  # who was admitted is served
            sock.close()


def test_a_crowd_that_is_refused_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(SLOW, max_queued=1) as server, server.client() as client, send(server, LONG):
        until(lambda: server.service.thread.running is not None)
        with send(server, SHORT):
            until(lambda: len(server.service.queue) == 1)
            assert {client.post("/v1/completions", json=SHORT).status_code for _ in range(30)} == {429}
    assert 1 <= len([record for record in caplog.records if "refused" in record.getMessage()]) <= 20


def test_every_refused_request_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(api_keys=("a-key-of-this-server",)) as server, server.client() as client:
        headers = {"authorization": "Bearer a-key-of-this-server", "x-request-id": "mine"}
        client.post("/api/chat", json={}, headers=headers)
        client.post("/v1/completions?key=secret", json={"prompt": "x", "n": 99}, headers=headers)
        client.post("/v1/completions", json=SHORT)
        client.get("/v1/models", headers={"origin": "http://other.example"})
        client.get("/%0Anothing", headers=headers)
        assert client.get("/health").status_code == client.get("/livez").status_code == 200
        assert client.post("/v1/completions", json=SHORT, headers=headers).status_code == 200
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 5
    assert lines[0].startswith("refused POST /api/chat: 404 not_found: no route POST /api/chat here; chat is")
    assert lines[0].endswith("(request mine)")
    assert lines[1].startswith("refused POST /v1/completions: 400 invalid_value: n: Input should be less")
    assert "401 invalid_api_key" in lines[2]
    assert "403 origin_not_allowed" in lines[3]
    assert not any("secret" in line or "\n" in line for line in lines)


def test_refusals_that_were_not_told_are_summed_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_log, "EVERY_S", 0.05)

    async def refuse() -> None:
        log = refusal_log.RefusalLog()
        for _ in range(refusal_log.MAX_LINES + 5):
            log.log("GET /x: 404 \n\x1b[2J")
        await asyncio.sleep(0.2)
        log.log("GET /y: 404")

    asyncio.run(refuse())
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:-2] == ["refused GET /x: 404 ??[2J"] * refusal_log.MAX_LINES
    assert lines[-2].startswith("refused 5 more requests")
    assert lines[-1] == "refused GET /y: 404"


def test_a_reader_that_does_not_read_is_given_up() -> None:
    with served(max_unread_events=8) as server:
        asked = {**LONG, "stream": True, "forerun": {"details": True}}
        with socket.socket() as sock:
            server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # for what it accepts from now on
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.connect(server.address)
            body = json.dumps(asked).encode()
            sock.sendall(HEAD % len(body) + body)
            until(lambda: server.service.thread.running is not None)
            until(lambda: is_idle(server))
        assert num_ended(server, "slow_reader") == 1
        until(lambda: num_written(server) >= 8)  # counted in the loop, after the pass was given up
        assert num_written(server) < LONG["max_tokens"]
        with server.client() as client:
            assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_request_has_an_end_in_time() -> None:
    with served(SLOW, max_request_s=1.0) as server, server.client() as client:
        answer = client.post("/v1/completions", json=LONG)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        *_, last = events_of(client.post("/v1/completions", json={**LONG, "stream": True}).text)
        assert json.loads(last)["error"]["code"] == "deadline_exceeded"
        until(lambda: is_idle(server))


def test_a_stream_that_waits_says_that_it_lives() -> None:
    with served(SLOW, ping_s=0.05) as server, server.client() as client, send(server, {**LONG, "max_tokens": 30}):
        until(lambda: server.service.thread.running is not None)
        text = client.post("/v1/completions", json={**SHORT, "stream": True}).text
        assert text.startswith(": waiting\n\n") or ": waiting" in text
        assert text.endswith("data: [DONE]\n\n")


def test_what_was_admitted_is_answered_before_the_end(slow: Served) -> None:
    with slow.client() as client:
        whole = client.post("/v1/completions", json={**LONG, "max_tokens": 60}).json()["choices"][0]["text"]
    answers: list[str] = []
    with served(SLOW) as server:

        def ask() -> None:
            with server.client() as client:
                answers.append(client.post("/v1/completions", json={**LONG, "max_tokens": 60, "stream": True}).text)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(server.service._jobs) == 2)
    for thread in threads:
        thread.join(30)
    for answer in answers:
        *events, done = events_of(answer)
        assert done == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == whole
    assert len(answers) == 2


def test_what_takes_longer_than_the_drain_ends_with_an_error() -> None:
    with served(SLOW, drain_s=0.2) as server:
        sock = send(server, {**LONG, "stream": True})
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    received = b""
    while more := sock.recv(65536):
        received += more
    sock.close()
    assert b'"shutting_down"' in received
    assert b"[DONE]" not in received


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RankLostError("rank 1 of the target (pid 7) ended: /some/path"),
            "rank_lost",
            "rank 1 of the target.",
        ),
        (RuntimeError("at /some/path"), "internal_error", "The server failed"),
    ],
)
def test_clients_are_told_why_the_engine_has_ended(error: Exception, code: str, message: str) -> None:
    with served(idle_s=1.0) as server:  # which closes the connections soon after the answers
        is_waiting = threading.Event()

        def end(*_: object, **__: object) -> GenerationStream:
            assert is_waiting.wait(60)
            raise error

        server.service.engine.stream = end  # type: ignore[method-assign]
        server.service.thread._explain = end  # type: ignore[method-assign] - so that any error ends the engine
        with send(server, SHORT) as running, send(server, SHORT) as waiting:
            until(lambda: len(server.service._jobs) == 2)
            is_waiting.set()
            for sock in (running, waiting):
                answer = read_all(sock)
                assert code.encode() in answer
                assert message.encode() in answer
                assert b"/some/path" not in answer
                assert b"shutting" not in answer


def test_the_log_says_what_became_of_each_request_and_what_the_end_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="forerun")
    with served(SLOW) as server, server.client() as client:
        for _ in range(2):
            client.post(
                "/v1/completions", json={**SHORT, "prompt": list(range(100, 140))}, headers={"x-request-id": "a"}
            )
        sock = send(server, LONG)
        until(lambda: len(server.service._jobs) == 1)
    sock.close()
    lines = [line for line in caplog.messages if line.startswith("/v1/completions (request a): ")]
    assert [re.sub(r"[\d.]+ s|[\d.]+ tokens/s", "x", line.partition(": ")[2]) for line in lines] == [
        "40 prompt tokens in x, 2 written in x (x), length",
        "40 prompt tokens (39 cached) in x, 2 written in x (x), length",
    ]
    assert any(
        line.startswith("the server ends once 1 request is answered, in at most 30 s; ") for line in caplog.messages
    )


def test_a_failure_is_one_request_s_and_readiness_tells_of_it() -> None:
    with served() as server, server.client() as client:
        engine = server.service.engine
        near_tie = engine.near_tie
        is_broken = True

        def fail(params: SamplingParams) -> float:
            if is_broken:
                raise NumericalError("of the test, at /some/path")
            return near_tie(params)

        engine.near_tie = fail  # type: ignore[method-assign]
        answer = client.post("/v1/completions", json=SHORT)
        assert answer.status_code == 500
        assert "/some/path" not in answer.text
        assert client.get("/ready").json() == {"status": "failing"}
        assert client.get("/health").status_code == 200
        is_broken = False
        until(lambda: client.get("/ready").status_code == 200)  # by its own probe
        assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_what_is_alive_says_so_before_the_model_is_there() -> None:
    is_read = threading.Event()

    def make_engine(engine_config: EngineConfig) -> Engine:
        assert is_read.wait(120)
        return Engine(engine_config)

    with served(make_engine=make_engine, waits=False) as server, server.client() as client:
        assert client.get("/livez").status_code == 200
        answer = client.get("/health")
        assert answer.status_code == 503
        expected = {"code": 503, "message": "Loading model", "type": "unavailable_error"}  # llama-server's
        assert answer.json()["error"] == expected
        assert client.get("/ready").json()["status"] == "loading"
        assert client.post("/v1/completions", json=SHORT).json()["error"]["code"] == "model_loading"
        is_read.set()
        until(lambda: client.get("/health").status_code == 200)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/completions", json=SHORT).status_code == 200
