"""Ctrl-C as a wish to stop, not as an exception in the middle of a computation."""

import signal
from types import FrameType, TracebackType
from typing import Any


class StopOnInterrupt:
    """While open, the first Ctrl-C only sets `is_asked`; the second interrupts at once.

    Signals belong to the main thread, so this must be opened there.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: Any = None

    def __enter__(self) -> "StopOnInterrupt":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
