"""How much a command prints on stderr besides its answer."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Literal

from forerun.cli.failures import say
from forerun.cli.flags import option, with_flags_of
from forerun.cli.streams import RESET, takes_colours

DIM = "\x1b[2m"
logger = logging.getLogger(__name__)
# The least severe kind that is printed: errors; warnings; the model's description and statistics; everything.
LogLevel = Literal["error", "warning", "info", "debug"]


@with_flags_of(panel="Output")
class LogOptions:
    """How much is printed on stderr."""

    log_level: Annotated[LogLevel, option("--log-level", help="info also prints what runs, and statistics.")] = "info"
    verbose: Annotated[bool, option("--verbose", "-v", help="The same as --log-level debug.")] = False
    quiet: Annotated[bool, option("--quiet", help="The same as --log-level warning.")] = False

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Print log lines of this level and above on stderr, including the engine's."""
        level = "debug" if self.verbose else "warning" if self.quiet else self.log_level
        ours = logging.getLogger("forerun")
        handler = ToStderr()
        before = ours.level
        ours.addHandler(handler)
        ours.setLevel(level.upper())
        try:
            yield
        finally:
            ours.removeHandler(handler)
            ours.setLevel(before)


class ToStderr(logging.Handler):
    """Prints log lines on the current stderr: information is dim, warnings and errors begin with their level."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        is_dim = takes_colours("stderr") and not os.environ.get("NO_COLOR")
        with suppress(OSError):  # the terminal was closed
            if record.levelno > logging.INFO:
                say(f"forerun: {record.levelname.lower()}: {message}")
            else:
                say(f"{DIM}{message}{RESET}" if is_dim else message)


def note(message: str) -> None:
    """Log a line of information."""
    logger.info("%s", message)


def note_all(**settings: object) -> None:
    """Log every setting, for --verbose."""
    for name, value in settings.items():
        logger.debug("%s: %s", name, value)
