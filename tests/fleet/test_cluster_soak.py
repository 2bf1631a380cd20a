"""A fleet on a cluster for minutes: warm conversations, machines that die under load. With -s it says figures."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.fleet.nodes import Front, Nodes, cluster, streamed, until

pytest.importorskip("ray", reason="the extra replicas is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(2400)]

NUM_CONVERSATIONS = 200
NUM_TURNS = 5
NUM_CLIENTS = 3
KILL_S = 600.0
KILL_EVERY_S = 20.0
THINK_S = 0.3
NUM_TIMED = 100
MAX_ADDED_MS = 8.0


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with cluster("a", "b", "c") as made:
        yield made


def with_four(nodes: Nodes) -> Front:
    front = nodes.front("--replicas", "4")
    until(lambda: front.says("is ready", 4))
    return front


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def in_threads(work: list[threading.Thread]) -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


def test_turns_find_their_text_warm(nodes: Nodes) -> None:
    """A turn is warm if all tokens of the turn before were cached."""
    front = with_four(nodes)
    found = Counter[str]()
    waiting = list(range(NUM_CONVERSATIONS))

    def talk() -> None:
        with front.client() as client:
            while waiting:
                number = waiting.pop()
                num_before = 0
                messages = [{"role": "user", "content": f"def conversation_{number}(first, second):"}]
                for turn in range(NUM_TURNS):
                    asked = {"messages": messages, "max_tokens": 16, "temperature": 0}
                    answer = client.post("/v1/chat/completions", json=asked).json()
                    usage = answer["usage"]
                    if turn:
                        is_warm = usage["prompt_tokens_details"]["cached_tokens"] >= num_before
                        found["warm" if is_warm else "cold"] += 1
                    num_before = usage["prompt_tokens"]
                    messages += [answer["choices"][0]["message"], {"role": "user", "content": f"return {turn}"}]

    in_threads([threading.Thread(target=talk) for _ in range(NUM_CLIENTS)])
    share = found["warm"] / (found["warm"] + found["cold"])
    say(f"{found['warm']} of {found['warm'] + found['cold']} later turns were warm: {share:.2%}")
    assert share >= 0.98


def asked_of(number: int) -> dict[str, object]:
    sampling = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}
    return {"prompt": f"def f{number}(", "max_tokens": 350, "ignore_eos": True, **sampling}


def test_streams_go_on_while_machines_die(nodes: Nodes) -> None:
    front = with_four(nodes)
    draw = random.Random(5)
    with front.client() as client:
        texts = {}
        for number in range(12):
            answer = client.post("/v1/completions", json=asked_of(number)).json()
            texts[number] = answer["choices"][0]["text"]
    ends = Counter[str]()
    unready = list[float]()
    is_over = threading.Event()

    def ask(seed: int) -> None:
        own = random.Random(seed)
        while not is_over.is_set():
            number = own.randrange(len(texts))
            with front.client() as client:
                end, text = streamed(client, asked_of(number))
            is_right = text == texts[number] if end == "whole" else texts[number].startswith(text)
            if end == "503" and not text and not front.num_ready():
                end = "refused, as nothing was alive"
            ends[end if is_right else "wrong text"] += 1
            if end != "whole":
                say(f"{time.monotonic() - began:.0f} s: {end}, {len(text)} characters")
            time.sleep(THINK_S)

    def watch() -> None:
        while not is_over.wait(0.5):
            if not front.num_ready():
                unready.append(time.monotonic())

    began = time.monotonic()
    num_killed = 0
    num_added = 0
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(NUM_CLIENTS)]
    threads += [threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    while (now := time.monotonic()) - began < KILL_S:
        names = [name for name in nodes.nodes if name != "head"]
        if len(names) > 1:  # else the last new one did not start: on a busy machine Ray gives up
            nodes.kill(draw.choice(names))
            num_killed += 1
        num_added += 1
        if not nodes.add(f"n{num_added}"):
            say(f"{time.monotonic() - began:.0f} s: node n{num_added} did not start")
        time.sleep(max(0.0, now + KILL_EVERY_S - time.monotonic()))
    is_over.set()
    for thread in threads:
        thread.join()
    num_continued = sum("goes on" in line for line in front.lines)
    say(f"{num_killed} machines killed, {num_continued} streams continued, ends {dict(ends)}")
    say(f"no replica was ready in {len(unready)} of about {(time.monotonic() - began) * 2:.0f} looks")
    assert set(ends) <= {"whole", "refused, as nothing was alive"}
    assert num_continued


def first_event_ms(client: httpx.Client) -> float:
    asked = {"prompt": "def f(", "max_tokens": 1, "temperature": 0, "stream": True}
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=asked) as answer:
        next(answer.iter_lines())
        return (time.perf_counter() - began) * 1e3


def test_the_time_that_a_cluster_adds_to_the_first_event(nodes: Nodes) -> None:
    front = nodes.front("--replicas", "1")
    alone = nodes.front(address="")
    until(lambda: front.says("is ready") and alone.says("ready:"))
    time.sleep(10)
    times: dict[str, list[float]] = {"cluster": [], "alone": []}
    with front.client() as left, alone.client() as right:
        for _ in range(NUM_TIMED):
            times["cluster"].append(first_event_ms(left))
            times["alone"].append(first_event_ms(right))
    cluster_ms, alone_ms = (sorted(times[name])[NUM_TIMED // 2] for name in ("cluster", "alone"))
    say(f"first event: {cluster_ms:.1f} ms in the cluster, {alone_ms:.1f} ms alone (medians of {NUM_TIMED})")
    assert cluster_ms - alone_ms <= MAX_ADDED_MS
