"""Starting and ending as a process: errors before the model is loaded, each with its exit code, and signals."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from forerun.cli.fleet import FleetOptions
from forerun.server.config import ServerConfig
from forerun.server.guard.listening import bind
from tests.cli.conftest import Run, command, environment, run  # noqa: F401 - a fixture

END_S = 150.0
SERVE = ("serve", "builtin", "--port", "0", "--threads", "1", "--drafter", "none")


def test_connections_send_at_once() -> None:
    with bind(ServerConfig(port=0)) as listener, socket.create_connection(listener.getsockname()[:2]) as client:
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def refused(run: Run, code: int, *arguments: str) -> str:  # noqa: F811
    finished = run("serve", "builtin", *arguments)
    assert finished.exit_code == code, finished.output
    assert "listens" not in finished.output
    return finished.output


def test_a_port_in_use(run: Run, taken: int) -> None:  # noqa: F811
    assert "Address already in use" in refused(run, 6, "--port", str(taken))


def test_a_host_that_is_not_here(run: Run) -> None:  # noqa: F811
    assert "cannot listen" in refused(run, 6, "--host", "203.0.113.1", "--insecure-no-auth", "--port", "0")


def test_beyond_this_machine_a_key_is_needed(run: Run) -> None:  # noqa: F811
    assert "--api-key-file" in refused(run, 6, "--host", "0.0.0.0", "--port", "0")


def test_a_key_file_that_is_missing_or_open_to_others(run: Run, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "keys"
    assert "cannot be read" in refused(run, 7, "--api-key-file", str(path))
    path.write_text("k" * 32)
    path.chmod(0o644)
    assert "chmod 600" in refused(run, 7, "--api-key-file", str(path))


def test_a_key_that_can_be_guessed_and_a_port_that_is_none(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORERUN_API_KEY", "short")
    message = refused(run, 2)
    assert "short" not in message.replace("shorter", "")
    monkeypatch.delenv("FORERUN_API_KEY")
    assert "65535" in refused(run, 2, "--port", "70000")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--replicas", "many"), "--replicas 'many' must be a whole number, or auto"),
        (("--replicas", "0"), "--replicas 0 must lie in [1, 256]"),
        (("--replicas", "2", "--max-replicas", "4"), "are the bounds of --replicas auto"),
        (("--replicas", "auto", "--min-replicas", "4", "--max-replicas", "2"), "--max-replicas 2 must lie in [4, 256]"),
        (("--front",), "--front needs --ray-address"),
        (("--front", "--ray-address", "auto", "--replicas", "2"), "--front uses replicas that run already"),
    ],
)
def test_replicas_that_cannot_be(run: Run, flags: tuple[str, ...], message: str) -> None:  # noqa: F811
    assert message in refused(run, 2, *flags, "--port", "0")


def test_the_bounds_of_replicas_are_set() -> None:
    def numbers(**flags: object) -> tuple[int, int | None]:
        config = FleetOptions(**flags).config(ServerConfig())  # type: ignore[arg-type]
        return config.num_replicas, config.max_replicas

    assert numbers() == (1, None)
    assert numbers(replicas="3") == (3, None)
    assert numbers(replicas="auto") == (1, 8)
    assert numbers(replicas="auto", min_replicas=9) == (9, 9)
    assert numbers(replicas="auto", min_replicas=2, max_replicas=5) == (2, 5)


@pytest.mark.skipif(find_spec("ray") is not None, reason="the extra replicas is installed")
def test_replicas_need_their_extra(run: Run) -> None:  # noqa: F811
    assert "pip install 'ray[serve]" in refused(run, 2, "--replicas", "2", "--port", "0")


def test_no_such_model(run: Run) -> None:  # noqa: F811
    assert run("serve", "./nothing", "--port", "0").exit_code == 5


@pytest.mark.slow  # of those that serve several models or open a browser the same is asked
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_0_and_nothing_is_left(number: signal.Signals) -> None:
    process = subprocess.Popen(command(*SERVE), env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while "ready" not in (line := process.stderr.readline()):
            assert line, lines
            lines.append(line)
        found = re.search(r"http://\S+?(?=/v1)", line)
        assert found is not None
        answer = httpx.post(f"{found[0]}/v1/completions", json={"prompt": "def"}, timeout=60, trust_env=False)
        assert answer.status_code == 200
        known = psutil.Process(process.pid)
        listeners = [item for item in known.net_connections("tcp") if item.status == psutil.CONN_LISTEN]
        assert [item.laddr.ip for item in listeners] == ["127.0.0.1"]
        children = known.children(recursive=True)
        process.send_signal(number)
        assert process.wait(END_S) == 0
        assert "Traceback" not in process.stderr.read()
        assert psutil.wait_procs(children, timeout=END_S)[1] == []
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_open_shows_the_page_in_the_browser_that_is_named_and_a_signal_leaves_nothing(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    seen = tmp_path / "seen"
    fetch = "import sys, urllib.request; print(sys.argv[1], urllib.request.urlopen(sys.argv[1]).read().decode())"
    browser.write_text(f"#!/bin/sh\n{sys.executable} -c '{fetch}' \"$1\" > {seen}.part && mv {seen}.part {seen}\n")
    browser.chmod(0o755)
    with subprocess.Popen(
        command(*SERVE, "--open"), env=environment() | {"BROWSER": str(browser)}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until = time.monotonic() + 120
            while not seen.exists() and time.monotonic() < until:
                time.sleep(0.05)
            known = psutil.Process(process.pid)
            listeners = [item for item in known.net_connections("tcp") if item.status == psutil.CONN_LISTEN]
            assert [item.laddr.ip for item in listeners] == ["127.0.0.1"]
            children = known.children(recursive=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0
            assert process.stderr is not None
            said = process.stderr.read()
            page = re.search(r"(http://\S+) in a browser", said)
            assert page is not None
            assert seen.read_text().startswith(f"{page[1]} <!doctype html>")
            assert "Traceback" not in said
            assert psutil.wait_procs(children, timeout=END_S)[1] == []
        finally:
            process.kill()


@pytest.mark.slow
def test_the_second_signal_ends_it_at_once() -> None:
    slow = ("serve", "builtin", "--port", "0", "--threads", "1", "--drafter", "none", "--device", "paced:target=50ms")
    with subprocess.Popen(command(*slow), env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "ready" not in (line := process.stderr.readline()):
                assert line
            found = re.search(r"http://([\d.]+):(\d+)(?=/v1)", line)
            assert found is not None
            asked = {"prompt": "def", "max_tokens": 1500, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{found[0]}/v1/completions", json=asked, timeout=60, trust_env=False) as answer:
                events = answer.iter_raw()
                next(events)
                process.send_signal(signal.SIGTERM)
                next(events)  # what was admitted is written on
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1)
                process.send_signal(signal.SIGTERM)
                assert process.wait(END_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.slow
def test_a_signal_while_the_model_is_read_ends_it_too() -> None:
    process = subprocess.Popen(command(*SERVE), env=environment(), stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stderr is not None
            assert "listens" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
