"""A separate process that answers questions about untrusted programs, so that one that takes too long can be killed.

Counting steps inside a program limits nothing: one step, such as a product of strings, may take minutes. So the
operating system sets the limits (on macOS of time alone, on Windows none); after a timeout the caller kills the
process, and starts another one for the next question. The process is a fresh Python without this process's environment,
and imports only what it needs.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

from forerun.core.errors import ConfigError
from forerun.core.paths import place_of_windows

START_S: Final = 10.0  # to start Python and import a package, on a busy machine
FREE_BYTES: Final = 2**20  # of an answer, whatever the question
MAX_GROWTH: Final = 4  # further bytes of an answer for each byte of the question, JSON's escapes included
PIECE: Final = 2**16  # bytes, as many as a pipe holds
# The status of a process that the system has ended because its time was over; Windows never does.
OUT_OF_TIME: Final = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else None
RUN: Final = "import sys; sys.path[:] = sys.argv[2:]; __import__(sys.argv[1], fromlist=['main']).main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one question: seconds, and bytes of memory."""

    max_s: float = 5.0
    max_bytes: int = 2**29


USUAL_LIMITS: Final = Limits()


class LimitError(ConfigError):
    """The process took too long, wrote too much, or ended."""


class BoundedChild:
    """Asks a module's `main` questions, one at a time: each is a line of JSON; the first line, `head`, is sent once.

    The process starts with the first question, or with `start`. It ends with `close`, this object, or this process.
    """

    def __init__(self, module: str, head: Mapping[str, object]) -> None:
        self._module = module
        self._head = to_line(head)
        self._process: subprocess.Popen[bytes] | None = None
        self._has_head = self._has_answered = False
        self._lock = Lock()
        self._owner = os.getpid()

    def start(self) -> None:
        """Start the process, if it does not run, without waiting for it."""
        self._forget_parents()
        with self._lock:
            self._running()

    def ask(self, question: Mapping[str, object], limits: Limits = USUAL_LIMITS) -> Any:
        """The process's answer.

        Raises:
            LimitError: it gave no answer within the limits.
            ConfigError: the question is not JSON, or no process can be started.
        """
        line = to_line({**question, "max_s": limits.max_s, "max_bytes": limits.max_bytes})
        self._forget_parents()
        with self._lock:
            process = self._running()
            unsent = line if self._has_head else self._head + line
            self._has_head = True
            try:
                answer = json.loads(self._exchange(process, unsent, limits, FREE_BYTES + MAX_GROWTH * len(line)))
            except BaseException:  # an interrupt too: a late answer would be read as the answer to the next question
                self._end()
                raise
            self._has_answered = True
        if "costly" in answer:
            raise LimitError(answer["costly"])
        return answer

    def close(self) -> None:
        """End the process, even while it answers."""
        self._forget_parents()
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        places = [str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)]
        cache = [] if sys.pycache_prefix is None else ["-X", f"pycache_prefix={sys.pycache_prefix}"]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *cache, "-c", RUN, self._module, *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=place_of_windows(),
                start_new_session=True,  # Ctrl-C in a terminal is for this process alone
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no process can be started to run the model's own programs ({error}): allow this one to start others"
            ) from error
        weakref.finalize(self, end_process, process, os.getpid())
        self._process = process
        self._has_head = self._has_answered = False
        return process

    def _exchange(self, process: subprocess.Popen[bytes], unsent: bytes, limits: Limits, most: int) -> bytes:
        """Send these bytes and read a line of at most so many. A thread does it, because on Windows nothing else can
        stop waiting for a pipe."""
        found: list[bytes | LimitError] = []

        def work() -> None:
            try:
                found.append(exchanged(process, unsent, limits, most))
            except LimitError as error:
                found.append(error)

        waiting = Thread(target=work, daemon=True)
        waiting.start()
        try:
            waiting.join(limits.max_s + (0.0 if self._has_answered else START_S))
        finally:
            is_late = waiting.is_alive()
            if is_late:
                process.kill()  # then its pipes end, and nobody uses them when they are closed
                waiting.join()
        if is_late:
            raise LimitError(f"it took more than {limits.max_s:g} s")
        (answer,) = found
        if isinstance(answer, LimitError):
            raise answer
        return answer

    def _end(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            end_process(process, self._owner)

    def _forget_parents(self) -> None:
        """After a fork, drop the child of the parent process, because two processes must not ask the same child."""
        if self._owner != os.getpid():
            self._lock = Lock()
            self._end()
            self._owner = os.getpid()


def exchanged(process: subprocess.Popen[bytes], unsent: bytes, limits: Limits, most: int) -> bytes:
    """The line that a process answers to these bytes.

    Raises:
        LimitError: the process has ended, or wrote more bytes than `most`.
    """
    assert process.stdin is not None, "the child was started with pipes"
    assert process.stdout is not None, "the child was started with pipes"
    rest = memoryview(unsent)
    with suppress(OSError):  # the process has ended; the next read finds that
        while rest:
            rest = rest[process.stdin.write(rest) :]
    pieces: list[bytes] = []
    num_read = 0
    while True:
        piece = process.stdout.read(PIECE)
        if not piece:
            raise LimitError(reason_of_end(process, limits))
        pieces.append(piece)
        num_read += len(piece)
        if piece.endswith(b"\n"):
            return b"".join(pieces)
        if num_read > most:
            raise LimitError(f"it wrote more than {most >> 20} MiB")


def end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a child of the process `owner`; in another process only drop the reference to it."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:
        process.returncode = 0  # only its parent may wait for it
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def reason_of_end(process: subprocess.Popen[bytes], limits: Limits) -> str:
    status = process.wait()
    if status == OUT_OF_TIME:
        return f"it took more than {limits.max_s:g} s"
    return (
        f"its process ended with status {status}, perhaps for lack of memory: its limit is {limits.max_bytes >> 20} MiB"
    )


def to_line(said: Mapping[str, object]) -> bytes:
    """A line of JSON.

    Raises:
        ConfigError: the value cannot be written as JSON.
    """
    try:
        return json.dumps(said, default=_plain).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the values for a chat template must be JSON, and are not ({error}): give texts, numbers, lists and "
            "mappings, without deep nesting"
        ) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"one is a {type(value).__name__}")
