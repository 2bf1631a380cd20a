"""Errors as the terminal shows them: one message on stderr and an exit code, no traceback.

Exit codes: 0 fine, 1 anything else, 2 a setting, 3 a model or a pair that does not work, 5 no such model,
130 interrupted.
"""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import typer

from forerun.core.errors import CheckpointError, ConfigError, ContextOverflowError, ForerunError, VocabularyError

INCOMPATIBLE: Final = 3
INTERRUPTED: Final = 130


class ModelNotFoundError(CheckpointError):
    """A name that leads to no model; a model that was found and cannot be used is another error."""


EXIT_CODES: Final = (
    (ModelNotFoundError, 5),
    ((ConfigError, ContextOverflowError), 2),
    ((CheckpointError, VocabularyError), INCOMPATIBLE),
)


def find_model(name: str) -> Path:
    """The folder of a model.

    Raises:
        ModelNotFoundError: there is none of this name.
    """
    from forerun.checkpoints.locate import locate  # not free to import

    try:
        return locate(name)
    except CheckpointError as error:
        raise ModelNotFoundError(str(error)) from error


def say(message: str) -> None:
    """One line for the person at the terminal, out of the way of what is piped on."""
    print(message, file=sys.stderr, flush=True)


def exit_code(error: ForerunError) -> int:
    return next((code for kinds, code in EXIT_CODES if isinstance(error, kinds)), 1)


def shows_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a ForerunError of this command into its message and exit code."""

    @wraps(command)
    def call(**given: Any) -> None:
        try:
            command(**given)
        except ForerunError as error:
            say(f"forerun: error: {error}")
            raise typer.Exit(exit_code(error)) from None

    return call
