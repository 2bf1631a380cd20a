"""A server with two replicas as a process: the same texts, warm conversations, a replica that is killed, an end."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cli.conftest import environment
from tests.server.serving import events_of

pytest.importorskip("ray", reason="the extra replicas is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each start of Ray takes 10 s on an idle machine

KEY = "k" * 32
FORERUN = (sys.executable, "-m", "forerun")  # ray warns at its import, so warnings are no errors here
JSON = {"content-type": "application/json"}
SERVE = (
    "serve", "builtin", "--drafter", "draft_model", "--draft", "builtin-draft", "--chat-template", "chatml",
    "--port", "0", "--replicas", "2",
)  # fmt: skip
PACED = "paced:target=50ms"
ASKED = {"prompt": "def f(", "max_tokens": 40, "seed": 7, "temperature": 0.8}


@dataclass(frozen=True, kw_only=True)
class Front:
    """A running server with replicas."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, trust_env=False, headers={"authorization": f"Bearer {KEY}"})

    def replica(self, index: int) -> psutil.Process:
        """The process of a replica."""
        name = f"ray::ServeReplica:builtin.{index}"
        return next(item for item in self.children() if " ".join(item.cmdline()).startswith(name))

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def until(condition: Callable[[], bool], *, patience_s: float = 300) -> None:
    """Return once this holds, however busy the machine is."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def running(*flags: str) -> Iterator[Front]:
    """A server, which ends with 0 at a signal and leaves no process behind."""
    process = subprocess.Popen(
        [*FORERUN, *SERVE, *flags], env=environment(FORERUN_API_KEY=KEY), stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(process.stderr,))
    reader.start()
    known = psutil.Process(process.pid)
    try:
        until(lambda: process.poll() is not None or sum("is ready" in line for line in lines) == 2)
        assert process.poll() is None, lines
        found = re.search(r"http://\S+?(?=/v1)", "".join(lines))
        assert found is not None
        children = known.children(recursive=True)
        made = Front(url=found[0], process=process, lines=lines)
        with made.client() as client:  # a busy Ray counts a replica long after it said that it is ready
            until(lambda: client.get("/ready").json()["replicas_ready"] == 2)
        yield made
        children += known.children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        sys.stderr.writelines(lines)  # shown where the test fails
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
    assert "Traceback" not in "".join(lines)


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running() as made:
        yield made


def text_of(client: httpx.Client, session: str, **changes: Any) -> str:
    answer = client.post("/v1/completions", json={**ASKED, **changes}, headers={"x-session-id": session})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def ends_of(client: httpx.Client) -> dict[str, float]:
    """How many texts each replica has written."""
    found = re.findall(
        r'^forerun:request_success_total\{.*replica="(\d)"\} (\S+)$', client.get("/metrics").text, flags=re.MULTILINE
    )
    return {index: sum(float(value) for other, value in found if other == index) for index, _ in found}


def num_held(client: httpx.Client) -> float:
    """How many requests are being written or wait for that."""
    found = re.findall(
        r"^forerun:num_requests_(?:running|waiting)\{.*\} (\S+)$", client.get("/metrics").text, re.MULTILINE
    )
    return sum(map(float, found))


def test_the_text_is_the_same_whichever_replica_writes_it(front: Front) -> None:
    with front.client() as client:
        texts = {text_of(client, str(number)) for number in range(8)}
        assert len(texts) == 1
        assert all(ends_of(client)[index] > 0 for index in "01")


def test_a_second_turn_comes_to_the_replica_that_knows_the_first(front: Front) -> None:
    with front.client() as client:
        for number in range(6):
            messages = [{"role": "user", "content": f"def conversation_{number}_of_this_test(first, second):"}]
            asked = {"max_tokens": 20, "temperature": 0}
            first = client.post("/v1/chat/completions", json={"messages": messages, **asked}).json()
            messages += [first["choices"][0]["message"], {"role": "user", "content": "return"}]
            usage = client.post("/v1/chat/completions", json={"messages": messages, **asked}).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_two_conversations_at_once_are_written_by_two_replicas(front: Front) -> None:
    with front.client() as client:
        before = ends_of(client)
        threads = [threading.Thread(target=text_of, args=(client, name)) for name in ("left", "right")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = ends_of(client)
        assert sum(after.values()) == sum(before.values()) + 2


def test_guards_and_errors_are_those_of_one_engine(front: Front) -> None:
    with front.client() as client:
        assert client.get("/version", headers={"host": "other.example"}).status_code == 403
        assert client.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/metrics", headers={"authorization": "none"}).status_code == 401
        assert client.get("/health", headers={"authorization": "none"}).status_code == 200
        assert client.get("/").headers["content-security-policy"].startswith("default-src 'none'")
        answer = client.post("/v1/completions", content=b'{"prompt": NaN}', headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
        assert len(answer.headers.get_list("x-request-id")) == 1
        assert client.post("/v1/completions", content=b" " * 9_000_000, headers=JSON).status_code == 413
        assert client.post("/health").status_code == 405
        assert "key" in client.get("/openapi.json").json()["components"]["securitySchemes"]


def test_a_client_that_leaves_frees_the_replica(front: Front) -> None:
    with front.client() as client:
        before = sum(ends_of(client).values())
        with client.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 1500, "stream": True}) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        until(lambda: sum(ends_of(client).values()) == before + 1)
        assert 'finished_reason="disconnected"' in client.get("/metrics").text


def test_the_front_has_one_socket_and_it_is_this_machine_s(front: Front) -> None:
    port = int(front.url.rpartition(":")[2])
    sockets = psutil.Process(front.process.pid).net_connections("tcp")
    listening = [item.laddr for item in sockets if item.status == psutil.CONN_LISTEN]
    assert [place.ip for place in listening if place.port == port] == ["127.0.0.1"]


def test_a_replica_that_is_killed_costs_its_own_answers_only(front: Front) -> None:
    with front.client() as client:
        whole = text_of(client, "before")
        for killed in (0, 1):
            process = front.replica(killed)
            process.send_signal(signal.SIGKILL)
            for number in range(10):
                assert text_of(client, f"{killed} {number}") == whole
            until(lambda: client.get("/ready").json()["replicas_ready"] == 2)
            assert front.replica(killed).pid != process.pid
            assert text_of(client, "after") == whole


def test_a_stream_whose_replica_is_killed_ends_with_an_error() -> None:
    """Of a slow target, so that the text has not ended by then on a busy machine."""
    with running("--device", PACED) as front, front.client() as client:
        asked = {**ASKED, "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as answer:
            events = answer.iter_lines()
            assert next(events).startswith("data: ")
            running_on = re.search(
                r'^forerun:num_requests_running\{.*replica="(\d)"\} 1',
                client.get("/metrics").text,
                flags=re.MULTILINE,
            )
            assert running_on is not None
            front.replica(int(running_on[1])).send_signal(signal.SIGKILL)
            *_, last = events_of("\n".join(events))
        assert json.loads(last)["error"]["code"] == "replica_lost"
        until(lambda: client.get("/ready").json()["replicas_ready"] == 2)


def test_what_was_admitted_is_written_before_the_end() -> None:
    answers: list[str] = []
    asked = {**ASKED, "max_tokens": 200}  # long enough that none has ended before the last one is admitted
    with running("--device", PACED) as front, front.client() as client:
        whole = text_of(client, "a", **asked)

        def ask(name: str) -> None:
            headers = {"x-session-id": name}
            answers.append(client.post("/v1/completions", json={**asked, "stream": True}, headers=headers).text)

        threads = [threading.Thread(target=ask, args=(str(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: num_held(client) == 4)
        front.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        front.process.wait(120)
    texts = ["".join(json.loads(event)["choices"][0]["text"] for event in events_of(text)[:-1]) for text in answers]
    assert texts == [whole] * 4


def test_what_keeps_the_engines_from_opening_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    finished = subprocess.run(
        [*FORERUN, "serve", str(tmp_path), "--replicas", "2", "--port", "0"],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert finished.returncode in (3, 5)
    assert "forerun: error:" in finished.stderr
    assert "Traceback" not in finished.stderr
