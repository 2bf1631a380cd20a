"""Two hosts with a slow link between them: the text of one process, whatever is where, and a link that goes is told."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DrafterConfig, NoDrafter, Parallel, PromptLookup
from forerun.core.errors import RankLostError
from forerun.engine.engine import Engine
from forerun.sharding import torch_group
from tests.cli.conftest import environment
from tests.two_hosts import Host, fault, two_hosts

FAULT = fault() if sys.platform == "linux" else "not Linux"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(FAULT is not None, reason=str(FAULT))]
PROMPT = "def read(path):\n    return"
PORT = 7070
KINDS = (SamplingParams(max_new_tokens=20), SamplingParams(max_new_tokens=20, temperature=0.9, seed=5))
START_S = 60.0
END_S = 30.0


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("a key of thirty-two characters and more")
    return str(key)


@contextmanager
def worker(host: Host, *arguments: str, launcher: tuple[str, ...] = ()) -> Iterator["subprocess.Popen[str]"]:
    """`forerun worker` on that host."""
    command = [sys.executable, *launcher, "-m", "forerun", "worker", *arguments]
    with host.entered():
        process = subprocess.Popen(command, env=environment(), stdout=DEVNULL, stderr=PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.terminate()
            process.kill() if not launcher else process.wait()


def engine(drafter: DrafterConfig, **settings: Any) -> Engine:
    return Engine(EngineConfig(drafter=drafter, dtype="float64", num_threads=1, max_length=1100, **settings))


def texts(one: Engine) -> list[str]:
    return [one.generate(PROMPT, params).text for params in KINDS]


@pytest.fixture(scope="module")
def plain() -> list[str]:
    with engine(NoDrafter()) as one:
        return texts(one)


@pytest.mark.parametrize("delay_s", [0.001, 0.014])
def test_a_drafter_on_another_host_changes_no_token(delay_s: float, plain: list[str], key_file: str) -> None:
    with two_hosts(delay_s) as both:
        target, draft = both.hosts
        address = f"{draft.address}:{PORT}"
        serving = worker(draft, "--listen", address, "--key-file", key_file, "--dtype", "float64")
        with serving as process, target.entered():
            assert process.stderr is not None
            assert "drafts for targets" in process.stderr.readline()
            with engine(Parallel(address=address, key_file=key_file)) as one:
                assert one.drafter.wait_until_ready(START_S)
                assert texts(one) == plain
                assert one.generate(PROMPT, KINDS[0]).stats.num_accepted > 0


@pytest.mark.parametrize("delay_s", [0.001, 0.014])
def test_ranks_on_two_hosts_write_the_text_of_one_process(delay_s: float, plain: list[str], key_file: str) -> None:
    with two_hosts(delay_s) as both:
        here, there = both.hosts
        address = f"{here.address}:{PORT}"
        joining = ("builtin", "--role", "target", "--join", address, "--key-file", key_file)
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        remote: dict[str, Any] = {"rank_address": address, "rank_key_file": key_file}
        with worker(there, *joining, launcher=torchrun) as process, here.entered():
            with engine(PromptLookup(), target_ranks=3, remote_ranks=2, **remote) as one:
                assert texts(one) == plain
            assert process.wait(END_S) == 0


def test_a_link_that_goes_ends_the_group_and_names_who_is_behind_it(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_group, "DEADLINE_S", 3.0)
    with two_hosts(0.001) as both:
        here, there = both.hosts
        address = f"{here.address}:{PORT}"
        joining = ("builtin", "--role", "target", "--join", address, "--key-file", key_file)
        remote: dict[str, Any] = {"rank_address": address, "rank_key_file": key_file}
        with (
            worker(there, *joining),
            here.entered(),
            engine(NoDrafter(), target_ranks=2, remote_ranks=1, **remote) as one,
        ):
            stream = iter(one.stream(PROMPT, SamplingParams(max_new_tokens=1000, ignore_eos=True)))
            next(stream)
            both.link.send_signal(signal.SIGSTOP)
            with pytest.raises(RankLostError, match=rf"rank 1 of the target \(at {there.address}\) .*out of reach"):
                list(stream)
