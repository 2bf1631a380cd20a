"""What the server's process does to the machine around it, and what it leaves alone."""

import ast
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cli.conftest import ROOT
from tests.server.strain.process import ServingProcess, serving

# Python tells every process that starts with this on its path what goes beyond it.
AUDIT = """
import os, sys
WATCHED = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "socket.sendto",
           "pickle.find_class", "os.system")
def note(event, arguments):
    if event in WATCHED:
        line = repr((event, [item if isinstance(item, (str, bytes, int, tuple)) else "" for item in arguments])) + "\\n"
        file = os.open(os.environ["AUDITED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
sys.addaudithook(note)
"""
PARALLEL = ("--drafter", "parallel", "--fixed-widths")
SECRET = "zanzibar-in-a-prompt"
KEY = "a-key-that-nobody-logs"


def ask_all(server: ServingProcess) -> None:
    """A request to every part: texts, a chat template, tokens, numbers, a page, refusals."""
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as client:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "temperature": 1}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        assert client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 4, "stream": True}).is_success
        assert client.post("/tokenize", json={"prompt": SECRET}).is_success
        for path in ("/", "/metrics", "/openapi.json", "/v1/forerun"):
            assert client.get(path).is_success
        assert client.post("/v1/completions", json={"prompt": SECRET, "n": SECRET}).status_code == 400
        assert client.get("/nowhere", headers={"x-request-id": f"{SECRET}!"}).status_code == 404


def test_it_calls_nobody_listens_once_and_reads_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    found = tmp_path / "events"
    path = f"{tmp_path}:{ROOT / 'src'}"
    with serving(*PARALLEL, PYTHONPATH=path, AUDITED=str(found), FORERUN_API_KEY=KEY) as server:
        ask_all(server)
        known = psutil.Process(server.popen.pid)
        listening = [
            item.laddr
            for process in (known, *known.children(recursive=True))
            for item in process.net_connections("inet")
            if item.status == psutil.CONN_LISTEN
        ]
        assert listening == [server.address]
        assert KEY not in " ".join(known.cmdline())
        for child in known.children(recursive=True):
            assert KEY not in " ".join([*child.cmdline(), *child.environ().values()])
        said = server.said()
    assert SECRET not in said
    assert KEY not in said
    events = [ast.literal_eval(line) for line in found.read_text().splitlines()]
    assert [event for event in events if event[0] not in ("socket.bind", "socket.getaddrinfo")] == []
    assert {arguments[0] for name, arguments in events if name == "socket.getaddrinfo"} <= {"127.0.0.1"}
    assert len([event for event in events if event[0] == "socket.bind"]) == 1


@pytest.mark.slow
def test_nothing_outlives_it_where_it_is_killed() -> None:
    with serving(*PARALLEL) as server:
        asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60, trust_env=False).is_success
        children = psutil.Process(server.popen.pid).children(recursive=True)
        assert len(children) >= 2  # the drafter's, and that of the chat template
        server.popen.send_signal(signal.SIGKILL)
        server.popen.wait()
        assert psutil.wait_procs(children, timeout=60)[1] == []


def conversation(server: ServingProcess, texts: list[str]) -> tuple[str, int]:
    """The next answer of a conversation, and how many of the prompt's tokens were not read."""
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": text} for number, text in enumerate(texts)
    ]
    body = {"messages": messages, "max_tokens": 8, "temperature": 1, "seed": 5}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False).json()
    usage = answer["usage"]
    num_new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], num_new


@pytest.mark.parametrize(
    ("seed", "num_kills"), [(0, 1), *(pytest.param(seed, 10, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_conversations_go_on_after_the_server_was_killed(tmp_path: Path, seed: int, num_kills: int) -> None:
    """It is killed at any moment: while it reads, writes to disk, or rests."""
    rng = random.Random(seed)
    with serving("--no-saved-prompts") as steady:
        for number in range(num_kills):  # and as often again with the next turn
            question = "".join(f"value_{line} = {rng.randrange(90)}\n" for line in range(150))
            texts = [f"{number}\n{question}"]
            for turn in range(2):
                expected, _ = conversation(steady, texts)
                with serving(FORERUN_CACHE=str(tmp_path)) as server:
                    found, num_new = conversation(server, texts)
                    assert found == expected
                    assert turn == 0 or num_new <= 300 or num_kills > 1, "it was read again"
                    time.sleep(0.5 if num_kills == 1 else rng.random() * 0.1)
                    server.popen.send_signal(signal.SIGKILL)
                    server.popen.wait()
                texts += [expected, "go on"]
    assert list(tmp_path.glob("prompts/*/*/*.kv"))
