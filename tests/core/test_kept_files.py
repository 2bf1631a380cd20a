"""Whatever befalls a file that is kept, its old or its new contents are there whole, and nothing is lost unsaid."""

import logging
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forerun.backends.cpu.binding import fault
from forerun.core.errors import ForerunError
from tests.core.kept_kinds import KINDS, Kind, build
from tests.marks import in_turn

pytest.importorskip("gguf")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults as Linux has them")

NUM_MANY = {"kill": 500, "fill": 100, "limit": 100, "write_two": 200, "seal": 28}  # over all kinds
MOST_WRITES = 200  # of a process: the numbers that bfloat16 holds
PATIENCE_S = 60.0


class Writer:
    """A process that opens a kept file and writes numbers until it is killed, or has to say why it cannot."""

    def __init__(
        self, kind: Kind, folder: Path, numbers: Iterable[int], name: str = "main",
        before: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        self._said = b""
        if self.pid == 0:
            end = "crash"
            try:
                before()
                write_all(kind, folder, numbers, name, lambda line: os.write(writing, f"{line}\n".encode()))
                end = "begun"
            finally:
                if end == "crash":
                    traceback.print_exc()
                os.write(writing, f"{end}\n".encode())
                os._exit(0)
        os.close(writing)

    def wait_for_a_write(self) -> None:
        while self._said.count(b"\n") < 2:
            assert select.select([self._reading], [], [], PATIENCE_S)[0], "nothing is written"
            if not (piece := os.read(self._reading, 4096)):
                return
            self._said += piece

    def end(self) -> tuple[list[int], str]:
        """The numbers that were written, and why no more; empty where all were."""
        with os.fdopen(self._reading, "rb") as pipe:
            lines = (self._said + pipe.read()).decode().splitlines()
        os.waitpid(self.pid, 0)
        assert "crash" not in lines
        return [int(line) for line in lines if line.isdecimal()], " ".join(
            line for line in lines if not line.isdecimal() and line != "begun"
        )


def write_all(kind: Kind, folder: Path, numbers: Iterable[int], name: str, tell: Callable[[object], object]) -> None:
    said = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("forerun").addHandler(handler)
    try:
        write = kind.begin(folder, name)
        tell("begun")
        for number in numbers:
            write(number)
            if any("not kept" in line or "not saved" in line for line in said):
                tell(said[-1])
                return
            tell(number)
    except ForerunError as error:
        tell(str(error).replace("\n", " ") or "no reason")


def write_one(kind: Kind, folder: Path, number: int, before: Callable[[], object] = lambda: None) -> str:
    """What the process says where it cannot."""
    return Writer(kind, folder, [number], before=before).end()[1]


def require_next(kind: Kind, folder: Path, number: int) -> None:
    """What is there can be gone on with."""
    assert write_one(kind, folder, number) == ""
    assert kind.is_written(folder, number)


def kill(kind: Kind, folder: Path, rng: random.Random) -> None:
    began = time.perf_counter()
    writer = Writer(kind, folder, range(1, MOST_WRITES))
    if rng.random() < 0.8:
        writer.wait_for_a_write()
    took_s = min(time.perf_counter() - began, 0.1)
    time.sleep(rng.uniform(0, 2 * took_s))
    os.kill(writer.pid, signal.SIGKILL)
    written, said = writer.end()
    assert said == ""
    last = max(written, default=0)
    found = kind.numbers(folder)
    if kind.keeps_all:
        assert {*written} <= found <= {*written, last + 1}
    else:
        assert found <= {last, last + 1}
        assert found or not last
    require_next(kind, folder, last + 2)


def limit(kind: Kind, folder: Path, rng: random.Random) -> None:
    """No file may grow beyond some size: a disk that is full in the midst of any of them."""
    require_next(kind, folder, 1)
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    num_bytes = rng.randrange(largest)

    def confine() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

    require_old_or_new(kind, folder, write_one(kind, folder, 2, confine))
    require_next(kind, folder, 3)


def fill(kind: Kind, folder: Path, rng: random.Random) -> None:
    """A disk with little room left."""
    with disk(folder) as grow:
        require_next(kind, folder, 1)
        used = sum(path.stat().st_blocks for path in folder.rglob("*")) * 512
        room = rng.randrange(1, max(2, used // os.sysconf("SC_PAGESIZE")))
        grow(f"size={used + room * os.sysconf('SC_PAGESIZE')}")
        require_old_or_new(kind, folder, write_one(kind, folder, 2))
        grow("size=1g")
        require_next(kind, folder, 3)


def seal(kind: Kind, folder: Path, rng: random.Random) -> None:
    """A disk that may only be read."""
    with disk(folder) as mount:
        require_next(kind, folder, 1)
        mount("ro")
        said = write_one(kind, folder, 2)
        assert said, "nothing was said"
        require_old_or_new(kind, folder, said)
        mount("rw")
        require_next(kind, folder, 3)


def require_old_or_new(kind: Kind, folder: Path, said: str) -> None:
    found = kind.numbers(folder)
    assert kind.is_written(folder, 2) == (said == ""), (found, said)
    assert {1} <= found <= {1, 2} if kind.keeps_all else found <= {1, 2}, (found, said)


def write_two(kind: Kind, folder: Path, rng: random.Random) -> None:
    """Two processes write at once: all that either was told is written is there, or the last of it."""
    numbers = [range(1, 6), range(1, 6) if kind.has_items else range(101, 106)]
    writers = []
    for name, own in zip(("main", "other"), numbers, strict=True):
        writers.append(Writer(kind, folder, own, name))
        time.sleep(rng.choice((0.0, rng.uniform(0, 0.05))))
    ends = [writer.end() for writer in writers]
    for (written, said), wanted in zip(ends, numbers, strict=True):
        assert written == [*wanted] or said, "one gave up without a word"
    lasts = {max(written) for written, _ in ends if written}
    assert lasts
    found = kind.numbers(folder)
    if kind.keeps_all:
        assert {number for written, _ in ends for number in written} <= found
    else:
        assert found <= lasts
        assert found
    require_next(kind, folder, 120)


@contextmanager
def disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """A disk of its own at the folder, and what mounts it with other options."""

    def mount(*options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no disk of one's own can be had: {done.stderr.strip()}")

    mount("size=1g")
    try:
        yield lambda option: mount("remount", option)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    build(tmp_path_factory.mktemp("built"))


FAULTS = (kill, limit, fill, seal, write_two)


def name_of(value: Kind | Callable[..., None]) -> str:
    return value.name.replace(" ", "_") if isinstance(value, Kind) else value.__name__


def require_kernels(kind: Kind) -> None:
    if kind.name == "packed weights" and fault() is not None:
        pytest.skip(str(fault()))


@pytest.mark.parametrize(("befall", "kind"), in_turn(FAULTS, KINDS), ids=name_of)
def test_old_or_new_contents_are_there_whole(
    befall: Callable[[Kind, Path, random.Random], None], kind: Kind, tmp_path: Path
) -> None:
    require_kernels(kind)
    befall(kind, tmp_path, random.Random(1))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("befall", FAULTS, ids=name_of)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_so_it_is_many_times(befall: Callable[[Kind, Path, random.Random], None], kind: Kind, tmp_path: Path) -> None:
    require_kernels(kind)
    for seed in range(-(-NUM_MANY[befall.__name__] // len(KINDS))):
        folder = tmp_path / str(seed)
        folder.mkdir()
        befall(kind, folder, random.Random(seed))
