"""Logs refused requests, with a limit on the number of lines so that a flood of requests cannot fill the disk."""

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0  # between summaries
MAX_LINES: Final = 10  # within that time
MAX_CHARACTERS: Final = 300  # per line, part of which is chosen by the client


class RefusalLog:
    """Logs up to ten refusals per ten seconds at once, and afterwards the number of further ones.

    Use it in the event loop's thread only.
    """

    def __init__(self) -> None:
        self._num_told = self._num_untold = 0
        self._timer: asyncio.TimerHandle | None = None

    def log(self, about: str) -> None:
        """Log a refused request."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._sum_up)
        if self._num_told == MAX_LINES:
            self._num_untold += 1
            return
        self._num_told += 1
        logger.warning("refused %s", in_a_line(about))

    def _sum_up(self) -> None:
        self._timer = None
        if self._num_untold:
            logger.warning("refused %d more requests within %.0f s", self._num_untold, EVERY_S)
        self._num_told = self._num_untold = 0


def in_a_line(about: str) -> str:
    """The text made safe for one log line: no line breaks and no terminal control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in about[:MAX_CHARACTERS])
