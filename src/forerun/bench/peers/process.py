"""A peer in a separate process, so that its threads, libraries and crashes do not affect the measuring process."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any, Final

from forerun.bench.peers.messages import Answer, PeerError, PeerPlan, PeerRequest, from_line, to_line
from forerun.bench.records.answers import Turn
from forerun.core.config import SamplingParams

START_S: Final = 900.0  # compiling a model takes minutes
ANSWER_S: Final = 900.0
GRACE_S: Final = 5.0
TAIL_BYTES: Final = 2000


class Process:
    """A child process that answers lines. It and its children are killed if it is late, and when it is closed."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        # A file, because a pipe would have to be read while the child writes.
        self._stderr: IO[bytes] = TemporaryFile()  # noqa: SIM115  (closed by close)
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
        )
        self._was_late = False

    def ask(self, line: bytes, *, due: str, timeout_s: float) -> dict[str, Any]:
        """Send a line and wait for the answer, which must be of the kind `due`; returns its fields.

        Raises:
            PeerError: the child refused, died, or was late.
        """
        watchdog = Timer(timeout_s, self._kill_late)
        watchdog.start()
        try:
            reply = self._exchange(line)
        finally:
            watchdog.cancel()
        if not reply:
            raise self._failure(timeout_s)
        kind, values = from_line(reply)
        if kind == "refusal":
            raise PeerError(f"{self.name}: {values['message']}")
        if kind != due:
            raise PeerError(f"{self.name} answered with {kind!r} where {due!r} was due: report this")
        return values

    def close(self) -> None:
        """Give the child a moment to exit, then kill it and its children."""
        assert self._child.stdin is not None and self._child.stdout is not None, "both are pipes"
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(GRACE_S)
        self._kill()
        self._child.wait()
        self._child.stdout.close()
        self._stderr.close()

    def _exchange(self, line: bytes) -> bytes:
        """Send a line and read the child's reply; empty if the child has ended."""
        assert self._child.stdin is not None and self._child.stdout is not None, "both are pipes"
        try:
            self._child.stdin.write(line)
            self._child.stdin.flush()
        except BrokenPipeError:
            return b""
        return self._child.stdout.readline()

    def _kill_late(self) -> None:
        self._was_late = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _failure(self, timeout_s: float) -> PeerError:
        status = self._child.wait()
        if self._was_late:
            return PeerError(f"{self.name} gave no answer within {timeout_s:g} s and was stopped{self._last_words()}")
        return PeerError(f"the process of {self.name} ended with status {status}{self._last_words()}")

    def _last_words(self) -> str:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - TAIL_BYTES))
        words = self._stderr.read().decode(errors="replace").strip()
        return f"; its last words:\n{words}" if words else ", without a word"


class ProcessPeer:
    """A contestant in a separate process. The process measures times itself, so that they exclude the messages.

    Args:
        name: its name in reports.
        command: starts a process that runs `child.serve`.
        plan: the models to load, and their settings.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        plan: PeerPlan,
        *,
        start_s: float = START_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.name, self._max_length, self._answer_s = name, plan.max_length, answer_s
        self._process = Process(name, command)
        try:
            self._process.ask(to_line("open", plan), due="opened", timeout_s=start_s)
        except BaseException:
            self._process.close()
            raise

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        """The peer's answer to the prompt; the text stays empty.

        Raises:
            PeerError: the peer died, was late or refused.
        """
        request = PeerRequest.of(prompt_ids, params, max_length=self._max_length)
        fields = self._process.ask(to_line("write", request), due="answer", timeout_s=self._answer_s)
        answer = Answer(**fields)
        return Turn(
            text="",
            num_new_tokens=len(answer.token_ids),
            wall_s=answer.emitted_at_s[-1],
            num_prompt_tokens=len(prompt_ids),
            **fields,
        )

    def forget(self) -> None:
        """Empty the peer's cache."""
        self._process.ask(to_line("forget"), due="forgotten", timeout_s=self._answer_s)

    def close(self) -> None:
        """End the peer's process."""
        self._process.close()
