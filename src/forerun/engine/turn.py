"""One thread at a time."""

import sys
from threading import get_ident
from types import FrameType, TracebackType

from forerun.core.errors import EngineBusyError


class Turn:
    """Held while an engine works. Whoever comes meanwhile, or after the end, is turned away, not let in between.

    A turn belongs to the call that took it, and lasts no longer than that call is on its thread's stack. An interrupt
    can keep `__exit__` from being run, at its first instruction for one; the turn is free all the same.
    """

    def __init__(self) -> None:
        self._calls: dict[FrameType, int] = {}  # calls that want the turn with their threads; the first at work has it
        self.is_over = False

    def __enter__(self) -> None:
        if self.is_over:
            raise EngineBusyError("this engine was closed: open a new one")
        caller = sys._getframe(1)
        self._calls[caller] = get_ident()  # one instruction: of two threads one comes first
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
