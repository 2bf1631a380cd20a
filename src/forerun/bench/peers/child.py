"""The main loop of a peer's process: answer the requests on stdin until it closes."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import BinaryIO, Protocol

from forerun.bench.peers.messages import Answer, PeerPlan, PeerRequest, from_line, to_line
from forerun.core.errors import ForerunError


class Writer(Protocol):
    """An engine that answers requests."""

    def write(self, request: PeerRequest) -> Answer: ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Log:
    """Ids of one answer with their arrival times; created when the request arrives."""

    began_s: float = field(default_factory=perf_counter)
    token_ids: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    emitted_at_s: list[float] = field(default_factory=list)

    def add(self, token_ids: list[int]) -> None:
        self.emitted_at_s.append(perf_counter() - self.began_s)
        self.emitted.append(len(token_ids))
        self.token_ids += token_ids

    def answer(self) -> Answer:
        return Answer(
            token_ids=tuple(self.token_ids), emitted=tuple(self.emitted), emitted_at_s=tuple(self.emitted_at_s)
        )


def serve(open_writer: Callable[[PeerPlan], Writer]) -> None:
    """Open the engine that the first line describes, then answer line by line.

    A ForerunError is sent back as a message. Any other error ends this process, and the parent reads its traceback
    from stderr.
    """
    replies = claim_stdout()
    try:
        writer = open_writer(PeerPlan(**from_line(sys.stdin.buffer.readline())[1]))
    except ForerunError as error:
        replies.write(refusal(error))
        return
    replies.write(to_line("opened"))
    try:
        while line := sys.stdin.buffer.readline():
            replies.write(reply_to(writer, line))
    finally:
        writer.close()


def reply_to(writer: Writer, line: bytes) -> bytes:
    """The reply to a line."""
    try:
        kind, values = from_line(line)
        if kind == "write":
            return to_line("answer", writer.write(PeerRequest(**values)))
        assert kind == "forget", f"a peer was asked to {kind!r}"
        writer.forget()
        return to_line("forgotten")
    except ForerunError as error:
        return refusal(error)


def refusal(error: ForerunError) -> bytes:
    return json.dumps({"kind": "refusal", "message": str(error)}).encode() + b"\n"


def claim_stdout() -> BinaryIO:
    """Reserve stdout for messages: redirect what Python or a library prints to stderr."""
    sys.stdout.flush()
    messages = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(messages, "wb", buffering=0)
