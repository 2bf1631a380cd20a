"""A Ray cluster of several nodes on this machine, made as users make one, and fronts on it. All can be killed."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from tests.cli.conftest import environment

KEY = "k" * 32
PYTHON = (sys.executable, "-W", "ignore")  # ray warns at its import
RAY = (*PYTHON, "-m", "ray.scripts.scripts")
FORERUN = (sys.executable, "-m", "forerun")
STORE = "--object-store-memory=80000000"
STARTED = "Ray runtime started"
SERVE = (
    "--drafter", "draft_model", "--draft", "builtin-draft", "--chat-template", "chatml",
    "--port", "0",
)  # fmt: skip

SAFE = {"x-forerun-retry": "safe"}


def until(condition: Callable[[], bool], *, patience_s: float = 300) -> None:
    """Return once this holds, however busy the machine is."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Running:
    """A process, and the lines that it has written."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read its lines until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout as written:
            self.lines.extend(written)

    def says(self, words: str, number: int = 1) -> bool:
        assert self.process.poll() is None, self.lines
        return sum(words in line for line in list(self.lines)) >= number

    def kill(self) -> None:
        """As a machine that loses its power: this process and all that it started."""
        if self.process.poll() is None:
            everything = psutil.Process(self.process.pid).children(recursive=True)
            for each in [psutil.Process(self.process.pid), *everything]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()


class Front(Running):
    """A running server."""

    @property
    def url(self) -> str:
        found = re.search(r"http://[\d.]+:\d+", "".join(self.lines))
        assert found is not None
        return found[0]

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, timeout=300, trust_env=False, headers=headers, limits=limits)

    def num_ready(self) -> int:
        with self.client() as client:
            return int(client.get("/ready").json()["replicas_ready"])


class Nodes:
    """The nodes of a cluster."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
        self.environment = environment(FORERUN_API_KEY=KEY, RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder, **token)
        self.nodes: dict[str, Running] = {}
        self.fronts: list[Front] = []
        head = (
            "--head", "--port=0", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}",
            f"--ray-client-server-port={free_port()}",
        )  # fmt: skip
        assert self._start("head", head)
        found = re.search(r"ray start --address='([^']+)'", "".join(self.nodes["head"].lines))
        assert found is not None, self.nodes["head"].lines
        self.address = found[1]

    def _run(self, kind: type[Running], command: tuple[str, ...]) -> Running:
        running = kind(
            process=subprocess.Popen(
                command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
            )
        )  # fmt: skip
        threading.Thread(target=running.read, daemon=True).start()
        return running

    def _start(self, name: str, arguments: tuple[str, ...]) -> bool:
        node = self._run(Running, (*RAY, "start", f"--node-name={name}", STORE, "--block", *arguments))
        until(lambda: node.process.poll() is not None or node.says("This command will now block"))
        if node.process.poll() is None:
            self.nodes[name] = node
        return name in self.nodes

    def add(self, name: str, *, num_cpus: int = 2) -> bool:
        """One more machine. False if it does not start, as Ray gives up on a busy machine."""
        return self._start(name, (f"--address={self.address}", f"--num-cpus={num_cpus}"))

    def kill(self, name: str) -> None:
        """A machine dies."""
        self.nodes.pop(name).kill()

    def drain(self, name: str) -> None:
        """Tell Ray that a machine will be taken away."""
        find = f"import ray; ray.init({self.address!r}, logging_level='ERROR'); print([n['NodeID'] for n in ray.nodes()"
        find += f" if n['NodeName'] == {name!r} and n['Alive']][0])"
        node = subprocess.run([*PYTHON, "-c", find], env=self.environment, capture_output=True, text=True, check=True)
        reason = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test", "--deadline-remaining-seconds=300")
        command = [*RAY, "drain-node", f"--address={self.address}", f"--node-id={node.stdout.strip()}", *reason]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def front(self, *flags: str, model: str = "builtin", address: str | None = None) -> Front:
        """A server on this cluster, or another one, or alone if the address is empty."""
        address = self.address if address is None else address
        command = (*FORERUN, "serve", model, *SERVE, *(("--ray-address", address) if address else ()), *flags)
        front = self._run(Front, command)
        assert isinstance(front, Front)
        self.fronts.append(front)
        return front

    def end(self) -> None:
        for front in self.fronts:
            if front.process.poll() is None:
                front.process.send_signal(signal.SIGTERM)
        for front in self.fronts:
            try:
                front.process.wait(60)
            except subprocess.TimeoutExpired:
                front.kill()
        for name in ["head", *self.nodes]:
            if name in self.nodes:
                self.nodes.pop(name).kill()
        for each in psutil.process_iter(["cmdline"]):  # what Ray has set apart from its parents
            if any(self._folder in word for word in each.info["cmdline"] or ()):
                each.kill()


@contextmanager
def cluster(*names: str, num_cpus: int = 2) -> Iterator[Nodes]:
    """A cluster with a head, which runs no replicas, and nodes of these names."""
    with TemporaryDirectory(prefix="fr", dir="/tmp", ignore_cleanup_errors=True) as folder:
        nodes = Nodes(str(Path(folder)))
        try:
            for name in names:
                assert nodes.add(name, num_cpus=num_cpus)
            yield nodes
        except BaseException:
            for front in nodes.fronts:
                sys.stderr.writelines(front.lines)
            raise
        finally:
            nodes.end()


def streamed(client: httpx.Client, asked: dict[str, object], *, headers: dict[str, str] = SAFE) -> tuple[str, str]:
    """How a stream ended, and its text."""
    text = ""
    end = "cut"
    with client.stream("POST", "/v1/completions", json={**asked, "stream": True}, headers=headers) as answer:
        if answer.status_code != 200:
            return str(answer.status_code), ""
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                end = "whole"
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return event["error"]["code"], text
                text += "".join(choice["text"] for choice in event["choices"])
    return end, text


def machine_of(client: httpx.Client) -> dict[str, str]:
    """The machine of each replica."""
    found = re.findall(r'^forerun:replica_up\{machine="(\w*)",replica="(\d+)"\}', client.get("/metrics").text, re.M)
    return {index: machine for machine, index in found}
