"""Whatever befalls `forerun prepare`, its folder is there whole or not at all, and the same command finishes it."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import forerun.cli.prepare_ranks as command
from forerun.cli.prepare_ranks import prepare_ranks
from forerun.core.config import EngineConfig
from forerun.core.errors import ForerunError
from forerun.core.locks import hold
from tests.checkpoints.cost import forked

NUM_RANKS: Final = 3
NUM_MANY: Final = 100  # of each fault
WRITTEN: Final = "written"
Contents = dict[str, bytes]


def prepare(out: Path) -> str:
    """WRITTEN, or the line that says why not."""
    try:
        config = EngineConfig(target="builtin", target_ranks=NUM_RANKS, num_threads=1)
        prepare_ranks(config, out, is_packed=False, calib=None)
    except ForerunError as error:
        return str(error)
    return WRITTEN


def contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Contents, float]:
    """What the folder holds when all goes well, and how long that takes."""
    out, began = tmp_path_factory.mktemp("whole") / "out", time.perf_counter()
    assert forked(lambda: prepare(out))[0] == WRITTEN
    return contents(out), time.perf_counter() - began


def require_whole_or_nothing(out: Path, expected: Contents) -> None:
    """Then the same command finishes what is missing."""
    if not out.exists():
        assert forked(lambda: prepare(out))[0] == WRITTEN
    assert contents(out) == expected
    assert [path.name for path in out.parent.iterdir()] == [out.name], "something unfinished is left"


def kill(out: Path, expected: Contents, seconds: float, rng: random.Random) -> None:
    """Up to three processes are killed one after another."""
    for _ in range(rng.randint(1, 3)):
        pid = os.fork()
        if pid == 0:
            prepare(out)
            os._exit(0)
        time.sleep(rng.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not out.exists() or contents(out) == expected
    require_whole_or_nothing(out, expected)


def fill(out: Path, expected: Contents, seconds: float, rng: random.Random) -> None:
    """The disk is full in the midst of a file; that there would be no room is not noticed before."""
    needed = sum(map(len, expected.values()))

    def without_looking() -> str:
        command.require_room = lambda folder, num_bytes: None
        return prepare(out)

    with disk(out.parent, rng.randrange(needed)) as grow:
        line = forked(without_looking)[0]
        assert f"{out} cannot be written" in line, line
        assert "No space left" in line, line
        assert not out.exists()
        assert not list(out.parent.glob(".*/.*")), "an unfinished file is left"
        grow(2 * needed)
        require_whole_or_nothing(out, expected)


def limit(out: Path, expected: Contents, seconds: float, rng: random.Random) -> None:
    """No file may be larger than some size."""
    most = max(map(len, expected.values()))

    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(most), resource.RLIM_INFINITY))
        return prepare(out)

    line = forked(limited)[0]
    assert f"{out} cannot be written" in line or "cannot be written" in line, line
    require_whole_or_nothing(out, expected)


def run_two(out: Path, expected: Contents, seconds: float, rng: random.Random) -> None:
    """Two at once, or one soon after the other: one writes, and the other says why it does not."""
    pids, ends = [], []
    for delay in (0.0, rng.uniform(0, 1.2 * seconds)):
        time.sleep(delay)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, prepare(out).encode())
            os._exit(0)
        os.close(writing)
        pids.append(pid)
        ends.append(reading)
    lines = []
    for pid, end in zip(pids, ends, strict=True):
        with os.fdopen(end) as pipe:
            lines.append(pipe.read())
        os.waitpid(pid, 0)
    assert lines.count(WRITTEN) == 1, lines
    (other,) = [line for line in lines if line != WRITTEN]
    assert any(words in other for words in ("another process writes", "exists already", "cannot be written")), other
    require_whole_or_nothing(out, expected)


@contextmanager
def disk(folder: Path, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """A disk of this size at the folder, which can be made larger."""
    page = os.sysconf("SC_PAGESIZE")

    def mount(size: int, *options: str) -> None:
        wanted = ",".join((*options, f"size={max(size, 8 * page)}"))
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", wanted, "none", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no disk of a chosen size can be had: {done.stderr.strip()}")

    mount(num_bytes)
    try:
        yield lambda size: mount(size, "remount")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


FAULTS: Final = (kill, fill, limit, run_two)


@pytest.mark.skipif(sys.platform != "linux", reason="faults as Linux has them")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_folder_is_there_whole_or_not_at_all(
    fault: Callable[..., None], whole: tuple[Contents, float], tmp_path: Path
) -> None:
    fault(tmp_path / "out", *whole, random.Random(1))


def test_a_folder_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    other = hold(tmp_path / ".out.part")
    assert other is not None
    try:
        assert f"another process writes to {tmp_path / '.out.part'}" in forked(lambda: prepare(tmp_path / "out"))[0]
    finally:
        os.close(other)
    assert list((tmp_path / ".out.part").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="faults as Linux has them")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_so_it_is_many_times(fault: Callable[..., None], whole: tuple[Contents, float], tmp_path: Path) -> None:
    for seed in range(NUM_MANY):
        folder = tmp_path / str(seed)
        folder.mkdir()
        fault(folder / "out", *whole, random.Random(seed))
