"""A server as a user starts it, in a process of its own, and what it takes of the machine."""

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from tests.cli.conftest import command, environment

MODEL = ("builtin", "--draft", "builtin-draft", "--chat-template", "chatml", "--threads", "1", "--port", "0")
READY = re.compile(r"ready: http://([\d.]+):(\d+)/v1")
START_S = 150.0
BYTES_PER_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What the server's process and its children take; own_rss_mib is of the server's process alone."""

    own_rss_mib: float
    rss_mib: float
    num_threads: int
    num_files: int
    num_processes: int


@dataclass(frozen=True, kw_only=True)
class ServingProcess:
    """A server that answers."""

    address: tuple[str, int]
    popen: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def footprint(self) -> Footprint:
        """Of this moment; a child that ends meanwhile is left out."""
        known = psutil.Process(self.popen.pid)
        own_rss = known.memory_info().rss
        rss = 0
        threads = 0
        files = 0
        processes = 0
        for process in (known, *known.children(recursive=True)):
            try:
                with process.oneshot():
                    found = process.memory_info().rss, process.num_threads(), process.num_fds()
            except psutil.Error:
                continue
            rss = rss + found[0]
            threads = threads + found[1]
            files = files + found[2]
            processes += 1
        return Footprint(
            own_rss_mib=own_rss / BYTES_PER_MIB,
            rss_mib=rss / BYTES_PER_MIB,
            num_threads=threads,
            num_files=files,
            num_processes=processes,
        )

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def said(self) -> str:
        """All that it wrote to its streams so far."""
        return read_apart(self.log)


@contextmanager
def serving(*flags: str, model: Sequence[str] = MODEL, **variables: str) -> Iterator[ServingProcess]:
    """A server of the built-in pair, or another model, with these flags and variables, ended afterwards.

    Raises:
        AssertionError: it does not start.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        arguments = command("serve", *model, *flags)
        popen = subprocess.Popen(arguments, env=environment(**variables), stdout=log, stderr=log)
        try:
            found = wait_until_ready(popen, log)
            yield ServingProcess(address=(found[1], int(found[2])), popen=popen, log=log)
        finally:
            popen.send_signal(signal.SIGTERM)
            try:
                popen.wait(60)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()


def wait_until_ready(popen: subprocess.Popen[bytes], log: IO[bytes]) -> re.Match[str]:
    """The line that says where it listens; the log's place is shared with the process, so it is read apart."""
    deadline = time.monotonic() + START_S
    while True:
        text = read_apart(log)
        found = READY.search(text)
        if found is not None:
            return found
        assert popen.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def read_apart(log: IO[bytes]) -> str:
    """The whole file, without moving the place at which the process writes on."""
    return Path(log.name).read_bytes().decode(errors="replace")
