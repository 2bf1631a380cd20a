"""Ranks that come from other hosts: here from other processes of this one, over TCP and with a key."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, NamedTuple

import pytest

import forerun
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import NoDrafter, PromptLookup
from forerun.core.errors import ConfigError, RankLostError
from forerun.engine.engine import Engine
from forerun.engine.rank_process import read_opening
from forerun.sharding import joining
from forerun.sharding.messages import Greeting, messages_from, to_frame
from tests.cli.conftest import environment

PROMPT = "def read(path):\n    return"
GREEDY = SamplingParams(max_new_tokens=12)
DRAWN = SamplingParams(max_new_tokens=12, temperature=0.9, seed=5)
LONG = SamplingParams(max_new_tokens=1000, ignore_eos=True)
END_S = 150.0


class Meeting(NamedTuple):
    """Where ranks meet, and by which key."""

    address: str
    key_file: str


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("a key of thirty-two characters and more")
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Meeting(f"127.0.0.1:{free.getsockname()[1]}", str(key))


@contextmanager
def rank_elsewhere(meeting: Meeting, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`forerun worker --role target` as the user of another host starts it."""
    command = [sys.executable, "-m", "forerun", "worker", *(arguments or ("builtin",)), "--role", "target"]
    with subprocess.Popen(
        [*command, "--join", meeting.address, "--key-file", meeting.key_file],
        env=environment(), stdout=DEVNULL, stderr=PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def leader(meeting: Meeting, num_ranks: int, num_remote: int, **settings: Any) -> Engine:
    config: dict[str, Any] = {
        "drafter": NoDrafter(),
        "dtype": "float64",
        "num_threads": 1,
        "max_length": 1100,
    } | settings
    return Engine(
        EngineConfig(
            target_ranks=num_ranks, remote_ranks=num_remote, rank_address=meeting.address,
            rank_key_file=meeting.key_file, **config,
        )
    )  # fmt: skip


def texts(one: Engine) -> list[str]:
    return [one.generate(PROMPT, params).text for params in (GREEDY, DRAWN)]


def test_ranks_of_other_hosts_write_the_text_of_one_process_and_end_with_their_leader(meeting: Meeting) -> None:
    with Engine(EngineConfig(drafter=NoDrafter(), dtype="float64", num_threads=1, max_length=1100)) as one:
        plain = texts(one)
    with rank_elsewhere(meeting) as process:
        with leader(meeting, 2, 1, drafter=PromptLookup()) as one:
            assert texts(one) == plain
        assert process.wait(END_S) == 0


@pytest.mark.slow
def test_torchrun_starts_ranks(meeting: Meeting) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    worker = ["forerun", "worker", "builtin", "--role", "target", "--join", meeting.address, "--key-file"]
    with subprocess.Popen([*command, *worker, meeting.key_file], env=environment(), stderr=DEVNULL) as process:
        try:
            with leader(meeting, 3, 2) as one:
                first = texts(one)
            assert process.wait(END_S) == 0
        finally:
            process.terminate()
    with Engine(EngineConfig(drafter=NoDrafter(), dtype="float64", num_threads=1, max_length=1100)) as one:
        assert texts(one) == first


@pytest.mark.slow
def test_a_killed_rank_of_another_host_is_named(meeting: Meeting) -> None:
    with rank_elsewhere(meeting) as process, leader(meeting, 2, 1) as one:
        stream = iter(one.stream(PROMPT, LONG))
        next(stream)
        process.kill()
        with pytest.raises(RankLostError, match=r"rank 1 of the target \(at 127\.0\.0\.1\) has gone"):
            list(stream)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"), [(("builtin-draft",), "is not the leader's"), (("builtin", "--dtype", "float32"), "")]
)
def test_a_rank_that_does_not_fit_says_so_on_both_sides(
    meeting: Meeting, arguments: tuple[str, ...], said: str
) -> None:
    with rank_elsewhere(meeting, *arguments) as process:
        if not said:  # the leader decides what is computed in
            leader(meeting, 2, 1).close()
            return
        with pytest.raises(RankLostError, match=rf"rank 1 of the target \(at 127\.0\.0\.1\) has gone: [^$]*{said}"):
            leader(meeting, 2, 1)
        assert process.wait(END_S) == 2
        assert process.stderr is not None
        assert said in process.stderr.read()


def test_neither_side_waits_forever(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "JOIN_S", 0.2)
    with pytest.raises(RankLostError, match=r"0 of 1 ranks joined 127\.0\.0\.1:\d+ within 0\.2 s: .*--join 127"):
        leader(meeting, 2, 1)
    with pytest.raises(RankLostError, match=r"no leader at 127\.0\.0\.1:\d+ within"):
        joining.join_leader(joining.Address.parse(meeting.address), b"a key of thirty-two characters and more")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (b"HTTP/1.1 400 Bad Request", "does not lead ranks"),
        (to_frame(Greeting(version="0.0")) + b"an opening of another version", "the leader runs forerun 0.0"),
        (to_frame(Greeting(version=forerun.__version__)) + b"another", "does not lead ranks"),
        (to_frame(Greeting(version=forerun.__version__)), "the leader has closed the connection"),
        (to_frame(Greeting(version="0.0"))[:-1], "the leader has closed the connection"),
        (b"", "the leader has closed the connection"),
    ],
    ids=[
        "another program",
        "another version",
        "garbage after the greeting",
        "no opening",
        "half a greeting",
        "nothing",
    ],
)
def test_what_is_no_leader_is_refused(said: bytes, match: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((ConfigError, RankLostError), match=match):
            read_opening(messages_from(ours))


def test_a_leader_without_a_key_is_for_this_host_only() -> None:
    with pytest.raises(ConfigError, match="give a key file"):
        Engine(EngineConfig(drafter=NoDrafter(), target_ranks=2, remote_ranks=1, rank_address="0.0.0.0:0"))
