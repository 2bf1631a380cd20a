"""The signals that end a program, Ctrl-C that waits for the end of a block, and passes that are given up."""

import os
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, c_int32
from types import FrameType
from typing import Final, TypeAlias

# SIGHUP: the terminal was closed.
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
Handler: TypeAlias = Callable[[int, FrameType | None], object]


class PassStopped(BaseException):
    """A pass was given up. Its rows are in no text."""


class StopFlag:
    """With it any thread ends the passes of the thread that runs them, see `stopped_by`.

    Attributes:
        address: of the flag as a number of 32 bits, which the kernels read between two tiles.
    """

    def __init__(self) -> None:
        self._word = c_int32(0)
        self.address = addressof(self._word)

    def set(self) -> None:
        self._word.value = 1

    @property
    def is_set(self) -> bool:
        return self._word.value != 0


class _OfThisThread(threading.local):
    flag: StopFlag | None = None


_here = _OfThisThread()


@contextmanager
def stopped_by(flag: StopFlag) -> Iterator[None]:
    """Give up the passes that this thread runs in the block once the flag is set: they raise PassStopped."""
    _here.flag = flag
    try:
        yield
    finally:
        _here.flag = None


def stop_address() -> int | None:
    """Address of the flag that ends this thread's passes; None: nothing does."""
    return None if _here.flag is None else _here.flag.address


def require_wanted() -> None:
    """Raise PassStopped if this thread's passes are given up."""
    if _here.flag is not None and _here.flag.is_set:
        raise PassStopped


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
