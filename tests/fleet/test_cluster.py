"""Replicas on a cluster: machines that die or are drained, several fronts, takeover, and what is not there."""

import re
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.fleet.nodes import Nodes, cluster, machine_of, streamed, until

pytest.importorskip("ray", reason="the extra replicas is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG = {"prompt": "def f(", "max_tokens": 1200, "ignore_eos": True, "temperature": 0.9, "seed": 3}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster("a", "b") as made:
        yield made


def running_on(page: str) -> set[str]:
    """The machines that write now."""
    return set(re.findall(r'^forerun:num_requests_running\{machine="(\w+)",replica="\d+"\} 1', page, flags=re.M))


def test_a_cluster_serves_and_outlives_its_machines_and_fronts(nodes: Nodes) -> None:
    first = nodes.front("--replicas", "2")
    until(lambda: first.says("is ready", 2))
    second = nodes.front("--front")
    until(lambda: second.says("is ready", 2))
    with first.client() as left, second.client() as right:
        whole = left.post("/v1/completions", json=LONG).json()["choices"][0]["text"]
        assert set(machine_of(right).values()) == {"a", "b"}
        for number in range(4):  # conversations come home through any front
            messages = [{"role": "user", "content": f"def conversation_{number}(first, second):"}]
            asked = {"messages": messages, "max_tokens": 12, "temperature": 0}
            answer = left.post("/v1/chat/completions", json=asked).json()
            assert re.fullmatch(r"replica-\d on [ab]", answer["usage"]["forerun"]["replica"])
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "return"}]
            usage = right.post("/v1/chat/completions", json=asked).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= answer["usage"]["prompt_tokens"]
        found: list[tuple[str, str]] = []

        def ask() -> None:
            found.append(streamed(right, LONG))

        # The front that started the replicas is killed: they stay, and so does the other front.
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: bool(running_on(right.get("/metrics").text)))
        first.kill()
        asking.join()
        # The machine of a stream dies: another goes on with it.
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: bool(running_on(right.get("/metrics").text)))
        (machine,) = running_on(right.get("/metrics").text)
        nodes.kill(machine)
        asking.join()
        assert found == [("whole", whole)] * 2
        assert second.says("another replica continues")
        assert right.post("/v1/completions", json=LONG).json()["choices"][0]["text"] == whole
    # A machine comes, and the same command takes over what runs.
    assert nodes.add("c")
    third = nodes.front("--replicas", "2")
    until(lambda: third.says("is ready", 2))
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    assert third.num_ready() == 2
    third.process.send_signal(signal.SIGTERM)
    assert third.process.wait(60) == 0
    assert not any("ServeReplica" in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))


def test_a_machine_that_is_drained_loses_no_answer() -> None:
    with cluster("a", "b", "c") as nodes:
        front = nodes.front("--replicas", "2")
        until(lambda: front.says("is ready", 2))
        asked = {**LONG, "max_tokens": 150}
        with front.client() as client:
            whole = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
            found: list[tuple[str, str]] = []

            def ask() -> None:
                for _ in range(25):
                    found.append(streamed(client, asked, headers={}))  # noqa: PERF401 - each is seen at once

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            until(lambda: len(found) > 5)
            drained = machine_of(client)["0"]
            nodes.drain(drained)
            for thread in threads:
                thread.join()
            assert found == [("whole", whole)] * 100
            until(lambda: drained not in machine_of(client).values())


def test_replicas_are_added_while_requests_wait(nodes: Nodes) -> None:
    front = nodes.front("--replicas", "auto", "--max-replicas", "2")
    until(lambda: front.says("is ready"))
    is_over = threading.Event()

    def ask() -> None:
        with front.client() as client:
            while not is_over.is_set():
                assert client.post("/v1/completions", json=LONG).status_code == 200

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: front.says("is ready", 2), patience_s=120)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert front.num_ready() == 2
    front.process.send_signal(signal.SIGTERM)
    assert front.process.wait(60) == 0


def test_a_target_may_be_shared_by_ranks_of_two_machines() -> None:
    with cluster("a", "b") as nodes:
        front = nodes.front("--replicas", "1", "--target-ranks", "2", "--remote-ranks", "1", "--rank-address", "auto")
        until(lambda: front.says("is ready"))
        with front.client() as client:
            answer = client.post("/v1/completions", json={**LONG, "max_tokens": 40}).json()
        assert answer["usage"]["completion_tokens"] == 40


def test_a_machine_that_lacks_the_model_is_named(nodes: Nodes) -> None:
    front = nodes.front("--replicas", "1", model="/nowhere/model.gguf")
    assert front.process.wait(120) in (3, 5)
    assert re.search(r"error: replica-0 on [abc]: .*/nowhere/model.gguf", "".join(front.lines))


def test_a_cluster_that_is_not_there_is_an_error(nodes: Nodes) -> None:
    front = nodes.front("--replicas", "2", address="127.0.0.1:1")
    assert front.process.wait(120) == 2
    assert "--ray-address 127.0.0.1:1 cannot be joined" in "".join(front.lines)
