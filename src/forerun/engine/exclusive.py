"""One thread at a time."""

import sys
from threading import get_ident
from time import sleep
from types import FrameType, TracebackType
from typing import Final

from forerun.core.errors import EngineBusyError

LOOKS_EVERY_S: Final = 1e-3  # for the end of another thread's work; a round takes as long or longer


class ExclusiveUse:
    """A lock that an engine holds while it works. Whoever comes meanwhile, or after the end, is turned away at once.

    It belongs to the call that took it, and lasts no longer than that call is on its thread's stack. An interrupt can
    keep `__exit__` from being run, at its first instruction for one; the lock is free all the same.
    """

    def __init__(self) -> None:
        self._calls: dict[FrameType, int] = {}  # calls that want the lock, with their threads; the first at work has it
        self._is_over = False

    def end(self) -> None:
        """Let nobody in any more, and return when no other thread is at work."""
        self._is_over = True
        while any(thread != get_ident() and is_at_work(call, thread) for call, thread in list(self._calls.items())):
            sleep(LOOKS_EVERY_S)

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        self._calls[caller] = get_ident()  # one instruction: of two threads one comes first
        if self._is_over:  # after that, so that who ends it sees this call, or this one sees the end
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
