"""Download progress, measured by the bytes on disk."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Final

from forerun.checkpoints.short_names.catalogue import NamedModel

Report = Callable[[str, int, int], None]  # source, bytes so far, total bytes
LOOK_S: Final = 0.2  # between two checks of the disk: short enough for a progress bar
LINE_S: Final = 4.0  # between two log lines

logger = logging.getLogger(__name__)


class LogLines:
    """A `Report` that logs a line at the start and then one every few seconds."""

    def __init__(self, model: NamedModel) -> None:
        self._what = f"{model.full_name} ({model.licence}, {model.licence_source})"
        self._origin, self._due = "", 0.0

    def __call__(self, origin: str, num_here: int, num_total: int) -> None:
        if origin != self._origin:
            logger.warning("fetching %s from %s, %.0f MB", self._what, origin, num_total / 1e6)
            self._origin, self._due = origin, monotonic() + LINE_S
        elif monotonic() >= self._due:
            logger.warning("fetching: %.0f of %.0f MB", num_here / 1e6, num_total / 1e6)
            self._due = monotonic() + LINE_S


@contextmanager
def watched(folder: Path, report: Callable[[int], None]) -> Iterator[None]:
    """Report a folder's size in bytes from a thread, repeatedly while the block runs.

    The download is done by a library or by pip, and neither reports progress in a way that is stable across versions.
    """
    ended = Event()

    def look() -> None:
        report(0)
        while not ended.wait(LOOK_S):
            report(_bytes_below(folder))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bytes_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                path = Path(where, name)
                total += 0 if path.is_symlink() else path.stat().st_size
            except FileNotFoundError:  # renamed or removed in the meantime
                continue
    return total
