"""Ctrl-C as a request to stop, instead of an exception in the middle of a computation."""

import signal
from math import inf
from types import FrameType
from typing import Any


class StopOnInterrupt:
    """While open, Ctrl-C only sets `is_asked`, until it is pressed more than `patience` times: then it interrupts.

    It interrupts once and sets `patience` to infinity again. Python handles signals in the main thread, so this must be
    opened there.
    """

    def __init__(self) -> None:
        self.patience = inf
        self._num_asked = 0
        self._before: Any = None

    @property
    def is_asked(self) -> bool:
        return self._num_asked > 0

    def __enter__(self) -> "StopOnInterrupt":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def lose_patience(self) -> None:
        """Let the next Ctrl-C interrupt at once; if one came before, interrupt now."""
        self.patience = 0
        if self.is_asked:
            self.patience = inf
            raise KeyboardInterrupt

    def read_line(self, prompt: str) -> str:
        """A line of input. While it is read, Ctrl-C interrupts; earlier ones are forgotten."""
        self._num_asked = 0
        self.patience = 0
        try:
            return input(prompt)
        finally:
            self.patience = inf

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._num_asked += 1
        if self._num_asked > self.patience:
            self.patience = inf
            raise KeyboardInterrupt
