"""A peer in a separate process, so that its threads, libraries and crashes do not affect the measuring process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from time import perf_counter
from typing import IO, Any, Final, Protocol

from forerun.core.config import SamplingParams
from forerun.core.errors import ForerunError
from forerun_lab.bench.peers.messages import PeerError, PeerPlan, PeerRequest
from forerun_lab.bench.records.answers import Turn

START_S: Final = 900.0  # compiling a model takes minutes
ANSWER_S: Final = 900.0
GRACE_S: Final = 5.0
TAIL_BYTES: Final = 2000


class ProcessPeer:
    """A contestant in a separate process. The process measures times itself, so that they exclude the messages.

    The process and its children are killed if it is late, and when it is closed.

    Args:
        name: its name in reports.
        command: starts a process that runs `serve`.
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
        self.name = name
        self._max_length = plan.max_length
        self._answer_s = answer_s
        # A file, because a pipe would have to be read while the child writes.
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115  (closed by close)
        self._channel, theirs = Pipe()
        self._child = subprocess.Popen(
            (*command, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        try:
            self._ask(plan, timeout_s=start_s)
        except BaseException:
            self.close()
            raise

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        """The peer's answer to the prompt.

        Raises:
            PeerError: the peer died, was late or refused.
        """
        turn: Turn = self._ask(
            PeerRequest.of(prompt_ids, params, max_length=self._max_length), timeout_s=self._answer_s
        )
        return turn

    def forget(self) -> None:
        """Empty the peer's cache."""
        self._ask(None, timeout_s=self._answer_s)

    def close(self) -> None:
        """Give the child a moment to exit, then kill it and its children."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(GRACE_S)
        self._kill()
        self._output.close()

    def _ask(self, message: PeerPlan | PeerRequest | None, *, timeout_s: float) -> Any:
        """Send a message and wait for the answer.

        Raises:
            PeerError: the child refused, died, or was late.
        """
        try:
            self._channel.send(message)
            if not self._channel.poll(timeout_s):
                self._kill()
                raise PeerError(
                    f"{self.name} gave no answer within {timeout_s:g} s and was stopped{self._last_words()}"
                )
            answer = self._channel.recv()
        except (EOFError, ConnectionError) as error:
            status = self._child.wait()
            raise PeerError(f"the process of {self.name} ended with status {status}{self._last_words()}") from error
        if isinstance(answer, PeerError):
            raise PeerError(f"{self.name}: {answer}")
        return answer

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _last_words(self) -> str:
        words = tail_of(self._output)
        return f"; its last words:\n{words}" if words else ", without a word"


def tail_of(file: IO[bytes]) -> str:
    """The end of what a process has written into a file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
    return file.read().decode(errors="replace").strip()


class Writer(Protocol):
    """An engine that answers requests in the peer's process."""

    def write(self, request: PeerRequest) -> Turn: ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


def serve(open_writer: Callable[[PeerPlan], Writer]) -> None:
    """The main loop of a peer's process: open the engine that the first message describes, then answer until the
    parent ends or closes its end.

    A ForerunError is sent back as a message. Any other error ends this process, and the parent reads its traceback.
    """
    channel: Connection[Any, Any] = Connection(int(sys.argv[-1]))
    os.set_inheritable(channel.fileno(), False)  # so that no process that is started here keeps it open
    with suppress(EOFError, ConnectionError):
        try:
            writer = open_writer(channel.recv())
        except ForerunError as error:
            channel.send(PeerError(str(error)))
            return
        try:
            channel.send(None)
            while True:
                request = channel.recv()
                try:
                    if request is None:
                        writer.forget()
                        channel.send(None)
                    else:
                        channel.send(writer.write(request))
                except ForerunError as error:
                    channel.send(PeerError(str(error)))
        finally:
            writer.close()


@dataclass(slots=True)
class Arrivals:
    """The part of an answer that has arrived.

    Ids are kept if the peer sends them. Tokens are counted by their ids, else by the peer's running count; if it sends
    neither, the columns stay empty.
    """

    began_s: float = field(default_factory=perf_counter)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    emitted: list[int] = field(default_factory=list)
    emitted_at_s: list[float] = field(default_factory=list)
    last_s: float = 0.0

    def add(self, token_ids: Sequence[int], *, text: str = "", num_tokens: int = 0, is_output: bool = True) -> None:
        """Record a new arrival.

        Args:
            num_tokens: the peer's count of all tokens so far; 0 if it does not send one.
            is_output: False for an event that has only the count.
        """
        at_s = perf_counter() - self.began_s
        if is_output:
            self.last_s = at_s
        self.texts.append(text)
        self.token_ids += token_ids
        count = len(self.token_ids) or num_tokens
        if count > self.num_tokens:
            self.emitted.append(count - self.num_tokens)
            self.emitted_at_s.append(at_s)
            self.num_tokens = count

    def turn(self, num_prompt_tokens: int) -> Turn:
        # A single count at the end gives the number of tokens but not their times.
        is_timed = len(self.emitted) > 1 or self.num_tokens == 1
        return Turn(
            text="".join(self.texts),
            num_new_tokens=self.num_tokens,
            wall_s=self.last_s,
            token_ids=tuple(self.token_ids),
            num_prompt_tokens=num_prompt_tokens,
            emitted=tuple(self.emitted) if is_timed else (),
            emitted_at_s=tuple(self.emitted_at_s) if is_timed else (),
        )
