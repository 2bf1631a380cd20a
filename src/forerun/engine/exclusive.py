"""A lock that lets only one thread use an engine at a time."""

import sys
from threading import get_ident
from time import sleep
from types import FrameType, TracebackType
from typing import Final

from forerun.core.errors import EngineBusyError

LOOKS_EVERY_S: Final = 1e-3  # polling interval for the end of another thread's work; a round takes as long or longer


class ExclusiveUse:
    """A lock that an engine holds while it works. Other callers, and callers after `end`, get an error immediately.

    A stack frame holds the lock while it is on its thread's stack. So the lock is released even if an interrupt
    prevents `__exit__`, for example at its first instruction.
    """

    def __init__(self) -> None:
        self._calls: dict[FrameType, int] = {}  # frames that wait for the lock, and their threads; the first holds it
        self._is_over = False

    def end(self) -> None:
        """Refuse new callers, and return when no other thread holds the lock."""
        self._is_over = True
        while any(thread != get_ident() and is_at_work(call, thread) for call, thread in list(self._calls.items())):
            sleep(LOOKS_EVERY_S)

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        self._calls[caller] = get_ident()  # atomic under the GIL, so one of two threads is first
        if self._is_over:  # checked after the insert: either `end` sees this call, or this call sees the end
            del self._calls[caller]
            raise EngineBusyError("this engine was closed: open a new one")
        for call, thread in list(self._calls.items()):
            if call is caller:
                return
            if is_at_work(call, thread):
                del self._calls[caller]
                raise EngineBusyError(
                    "this engine is in use by another thread, and serves one request at a time: wait for it, or open "
                    "another engine"
                )
            self._calls.pop(call, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.pop(sys._getframe(1), None)


def is_at_work(call: FrameType, thread: int) -> bool:
    """True until a call returns or raises an exception."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None
