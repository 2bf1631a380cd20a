"""What the server's process does to the machine around it, and what it leaves alone."""

import ast
import signal
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
