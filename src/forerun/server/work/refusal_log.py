"""One line in the log for many refusals: a crowd must not fill the disk as well."""

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0  # an operator who looks at the log sees that it goes on


class RefusalLog:
    """Tells of the first refusal at once, and then how many there were, every ten seconds.

    Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._num_untold = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, code: str) -> None:
        """A request was refused."""
        if self._timer is not None:
            self._num_untold += 1
            return
        logger.warning("a request was refused (%s): too much waits", code)
        self._wait()

    def close(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._sum_up)

    def _sum_up(self) -> None:
        self._timer = None
        if self._num_untold:
            logger.warning("%d more requests were refused within %d s: too much waits", self._num_untold, EVERY_S)
            self._num_untold = 0
            self._wait()
