"""A forkserver whose workers are bad: python bad_worker.py KIND CONTROL_DESCRIPTOR. Without torch, it starts fast."""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable

from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Begin, Failure, Hello, Proposal, Verdict
from forerun.wires.channel import Channel
from forerun.wires.forkserver import run_forkserver
from forerun.wires.frames import FrameReader

HELLO = KINDS.to_frame(Hello(pid=1, vocab_size=29, max_length=4096, vocabulary=bytes(32)))


def garbage(channel: Channel) -> None:
    """Bytes without end, some of which begin like frames."""
    rng = random.Random(0)
    channel.send(HELLO)
    while channel.is_open:
        channel.receive()
        channel.send(rng.choice((rng.randbytes(200), HELLO[:20] + rng.randbytes(60))))
        time.sleep(0.001)


def busy(channel: Channel) -> None:
    """Hears nothing and says nothing, at full speed."""
    channel.send(HELLO)
    while True:
        pass


def silent(channel: Channel) -> None:
    """Hangs without using the processor."""
    channel.send(HELLO)
    time.sleep(3600)


def dying(channel: Channel) -> None:
    """Is killed as soon as it is asked for something, as the kernel does when memory runs out."""
    channel.send(HELLO)
    channel.wait(None)
    os.kill(os.getpid(), signal.SIGKILL)


def failing(channel: Channel) -> None:
    """Says why it ends, and ends."""
    channel.send(HELLO)
    channel.wait(None)
    channel.send(KINDS.to_frame(Failure(text="the draft model went up in smoke")))
    raise RuntimeError("up in smoke")


def answer(channel: Channel, make: Callable[[int, int, int], Proposal], delay_s: float = 0.0) -> None:
    """Answer every begin and verdict with what `make` gives for (request, length of the text, root)."""
    reader = FrameReader(KINDS)
    channel.send(HELLO)
    while channel.is_open:
        channel.wait(None)
        for message in reader.feed(channel.receive()):
            if isinstance(message, Begin):
                place = message.request, len(message.prompt_ids), message.prompt_ids[-1]
            elif isinstance(message, Verdict):
                place = message.request, message.base_len + len(message.token_ids), message.token_ids[-1]
            else:
                continue
            time.sleep(delay_s)
            channel.send(KINDS.to_frame(make(*place)))


def chain(request: int, length: int, root: int, token_ids: tuple[int, ...]) -> Proposal:
    num_nodes = 1 + len(token_ids)
    return Proposal(
        request=request, base_len=length, serial=1, repair_s=0.001, token_ids=(root, *token_ids),
        parents=(0, *range(num_nodes - 1)), log_probs=tuple(-0.01 * node for node in range(num_nodes)),
    )  # fmt: skip


def slow(channel: Channel) -> None:
    """Answers, long after it would have been of use."""
    answer(channel, lambda request, length, root: chain(request, length, root, (1, 2)), delay_s=0.1)


def lying(channel: Channel) -> None:
    """Well-formed frames of nonsense: unknown ids, places of the text that do not exist, roots that are none."""
    rng = random.Random(0)

    def make(request: int, length: int, root: int) -> Proposal:
        wrong_len = max(1, length + rng.choice((0, 0, 1, -1, 1000)))
        wrong_root = rng.choice((root, root, (root + 1) % 29))
        return chain(rng.choice((request, request, request + 1)), wrong_len, wrong_root, (28, 4_000_000_000, 29))

    answer(channel, make)


def wrong(channel: Channel) -> None:
    """Proper guesses that are never right but by accident."""
    answer(channel, lambda request, length, root: chain(request, length, root, (length % 29, 7, 7, 7)))


def unready() -> None:
    raise RuntimeError("there is no such draft model")


if __name__ == "__main__":
    kind = sys.argv[1]
    descriptor = int(sys.argv[2])
    control = socket.socket(fileno=descriptor)
    if kind == "unready":
        run_forkserver(control, unready, lambda channel, _: None)
    else:
        run_forkserver(control, lambda: None, lambda channel, _: globals()[kind](channel))
