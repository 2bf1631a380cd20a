"""One thread at a time."""

import sys
from threading import get_ident
from time import sleep
from types import FrameType, TracebackType
from typing import Final

from forerun.core.errors import EngineBusyError

LOOKS_EVERY_S: Final = 1e-3  # polling interval for the end of another thread's work; a round takes as long or longer


class ExclusiveUse:
    """A lock that an engine holds while it works. A caller meanwhile, or after the end, gets an error at once.

    It is held by a stack frame and lasts as long as that frame is on its thread's stack. An interrupt can prevent
    `__exit__`, for example at its first instruction; the lock is released all the same.
    """

    def __init__(self) -> None:
        self._calls: dict[FrameType, int] = {}  # frames that wait for the lock, and their threads; the first holds it
        self._is_over = False

    def end(self) -> None:
        """Refuse new callers, and return when no other thread is at work."""
        self._is_over = True
        while any(thread != get_ident() and is_at_work(call, thread) for call, thread in list(self._calls.items())):
            sleep(LOOKS_EVERY_S)

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        self._calls[caller] = get_ident()  # atomic under the GIL, so two threads get an order
        if self._is_over:  # checked after the insert: either `end` sees this call, or this call sees the end
            del self._calls[caller]
            raise EngineBusyError("this engine was closed: open a new one")
        for call, thread in list(self._calls.items()):
            if call is caller:
                return
            if is_at_work(call, thread):
                del self._calls[caller]
                raise EngineBusyError(
                    "this engine is at work in another thread, and does one request at a time: wait for it, or open "
                    "another"
                )
            self._calls.pop(call, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.pop(sys._getframe(1), None)


def is_at_work(call: FrameType, thread: int) -> bool:
    """True while a call has not returned, nor ended with an exception."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None
