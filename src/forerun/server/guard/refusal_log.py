"""A line in the log for each refused request, and few of them for a crowd, which must not fill the disk as well."""

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0  # an operator who looks at the log sees that it goes on
MAX_LINES: Final = 10  # within that time
MAX_CHARACTERS: Final = 300  # of what a line says of a request, of which a client chose a part


class RefusalLog:
    """Tells of each refusal at once, of ten within ten seconds; how many more there were it tells afterwards.

    Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._num_told = self._num_untold = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, about: str) -> None:
        """A request was refused."""
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
    """What can be a part of a line of a log: nothing in it ends the line or moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in about[:MAX_CHARACTERS])
