"""How much a command says on stderr beside its answer."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from forerun.cli.declare import option
from forerun.cli.failures import say
from forerun.cli.streams import takes_colours

OUTPUT: Final = "Output"
DIM, RESET = "\x1b[2m", "\x1b[0m"
logger = logging.getLogger(__name__)
# The least that is worth a line: errors only; warnings too; also what runs and its numbers; everything.
LogLevel = Literal["error", "warning", "info", "debug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is said on stderr."""

    PANEL: ClassVar = OUTPUT
    log_level: Annotated[LogLevel, option("--log-level", help="info also says what runs, and its numbers.")] = "info"
    verbose: Annotated[bool, option("--verbose", "-v", help="The same as --log-level debug.")] = False
    quiet: Annotated[bool, option("--quiet", help="The same as --log-level warning.")] = False

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Lines of this level and above reach stderr, those of the engine too."""
        level = "debug" if self.verbose else "warning" if self.quiet else self.log_level
        ours, handler = logging.getLogger("forerun"), ToStderr()
        before = ours.level
        ours.addHandler(handler)
        ours.setLevel(level.upper())
        try:
            yield
        finally:
            ours.removeHandler(handler)
            ours.setLevel(before)


class ToStderr(logging.Handler):
    """Lines on the stderr of the moment: dim where they only inform, and named where they warn."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno > logging.INFO:
            say(f"forerun: {record.levelname.lower()}: {message}")
        else:
            say(f"{DIM}{message}{RESET}" if takes_colours("stderr") and not os.environ.get("NO_COLOR") else message)


def note(message: str) -> None:
    """A line that informs."""
    logger.info("%s", message)


def note_all(**settings: object) -> None:
    """Every setting, for those who want to know all."""
    for name, value in settings.items():
        logger.debug("%s: %s", name, value)
