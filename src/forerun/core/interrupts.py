"""The signals that end a program, and Ctrl-C that waits for the end of a block."""

import os
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeAlias

# SIGHUP: the terminal was closed.
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
Handler: TypeAlias = Callable[[int, FrameType | None], object]


@contextmanager
def ended_by(handler: Handler) -> Iterator[None]:
    """Within the block, this handles the signals that end a program. In other threads than the main one nothing
    changes."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in handled_signals()} if is_main else {}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def handled_signals() -> list[signal.Signals]:
    """The signals that end this program, which may have been started to outlive its terminal, as by nohup."""
    return [number for number in ENDING if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN]


def keep_handlers() -> None:
    """From now on a signal that ends a program calls Python's handler in the main thread, whatever handlers a library
    sets in C: all threads block these signals, and one waits for them.

    Call this before there are other threads. Processes that are forked take SIGTERM as usual; a closed terminal is no
    concern of theirs. Does nothing on Windows.
    """
    if not hasattr(signal, "pthread_sigmask"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,)))

    def wait() -> None:
        while True:
            interrupt_main(signal.Signals(signal.sigwait(ENDING)))

    threading.Thread(target=wait, name="signals", daemon=True).start()


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
