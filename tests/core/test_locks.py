"""One process at a time holds a lock; it ends with its holder, and leaves no file where it is released."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from forerun.core.errors import ConfigError
from forerun.core.locks import held, hold, lock

HOLDER = """
import sys, time
from pathlib import Path
from forerun.core.locks import lock
holding = lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""
# Each process reads a number and writes the next one; two that hold the lock at once lose a number.
COUNTER = """
import sys
from pathlib import Path
from forerun.core.locks import lock
counter = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with lock(counter.with_name("lock"), waits=True):
        number = int(counter.read_text())
        counter.write_text(str(number + 1))
"""


@contextmanager
def holder(file: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", HOLDER, file], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_lock_of_another_process_is_refused_until_that_process_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path / ".lock") as process:
        with pytest.raises(BlockingIOError, match="another process holds"):
            lock(tmp_path / ".lock")
        with pytest.raises(ConfigError, match=r"another process writes to .*: wait until it ends, or give another"):
            hold(tmp_path)
        process.kill()
        process.wait()
        hold(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_waited_for_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entered = list[str]()

    def enter() -> None:
        with held(tmp_path, "fetches into"):
            entered.append("yes")

    with holder(tmp_path / ".lock") as process, caplog.at_level(logging.WARNING):
        waiting = Thread(target=enter)
        waiting.start()
        while not caplog.messages:
            time.sleep(0.01)
        assert caplog.messages == [f"waiting for another process that fetches into {tmp_path}"]
        assert not entered
        process.kill()
        waiting.join()
    assert entered
    assert not list(tmp_path.iterdir())


def test_processes_that_wait_for_a_lock_hold_it_one_after_the_other(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTER, counter, "20"]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert counter.read_text() == "60"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*: give another folder to --out"):
        hold(tmp_path / "file" / "folder")
