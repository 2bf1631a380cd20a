"""Passes of the model that another thread makes this one give up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, c_int32


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
