"""One thread at a time."""

from threading import Lock
from types import TracebackType

from forerun.core.errors import EngineBusyError


class Turn:
    """Held while an engine works. Whoever comes meanwhile, or after the end, is turned away, not let in between."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.is_over = False

    def __enter__(self) -> None:
        if self.is_over:
            raise EngineBusyError("this engine was closed: open a new one")
        if not self._lock.acquire(blocking=False):
            raise EngineBusyError(
                "this engine is at work in another thread, and does one request at a time: wait for it, or open another"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
