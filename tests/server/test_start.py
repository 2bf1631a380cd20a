"""Starting and ending as a process: errors before the model is loaded, each with its exit code, and signals."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.conftest import RunProcess, command, environment, run_process  # noqa: F401 - a fixture

SERVE = ("serve", "builtin", "--port", "0", "--threads", "1", "--drafter", "none")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def refused(run: RunProcess, code: int, *arguments: str, **variables: str) -> str:
    finished = run("serve", "builtin", *arguments, **variables)
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    assert "listens" not in finished.stderr
    return finished.stderr


def test_a_port_in_use(run_process: RunProcess, taken: int) -> None:  # noqa: F811
    assert "Address already in use" in refused(run_process, 6, "--port", str(taken))


def test_a_host_that_is_not_here(run_process: RunProcess) -> None:  # noqa: F811
    assert "cannot listen" in refused(run_process, 6, "--host", "203.0.113.1", "--insecure-no-auth", "--port", "0")


def test_beyond_this_machine_a_key_is_needed(run_process: RunProcess) -> None:  # noqa: F811
    assert "--api-key-file" in refused(run_process, 6, "--host", "0.0.0.0", "--port", "0")


def test_a_key_file_that_is_missing_or_open_to_others(run_process: RunProcess, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "keys"
    assert "cannot be read" in refused(run_process, 7, "--api-key-file", str(path))
    path.write_text("k" * 32)
    path.chmod(0o644)
    assert "chmod 600" in refused(run_process, 7, "--api-key-file", str(path))


def test_a_key_that_can_be_guessed_and_a_port_that_is_none(run_process: RunProcess) -> None:  # noqa: F811
    message = refused(run_process, 2, FORERUN_API_KEY="short")
    assert "short" not in message.replace("shorter", "")
    assert "65535" in refused(run_process, 2, "--port", "70000")


def test_no_such_model(run_process: RunProcess) -> None:  # noqa: F811
    finished = run_process("serve", "./nothing", "--port", "0")
    assert finished.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
        assert psutil.wait_procs(children, timeout=5)[1] == []
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
