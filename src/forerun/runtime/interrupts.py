"""Delay Ctrl-C to the end of a block."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block. Only the main thread receives it, so in other threads nothing changes."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    frames: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: frames.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if frames:
        handler(signal.SIGINT, frames[0])
