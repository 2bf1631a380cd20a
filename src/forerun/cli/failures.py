"""Shows errors on the terminal: one message on stderr and an exit code, without a traceback.

Exit codes: 0 success, 1 any other error, 2 an invalid setting, 3 a model or a pair of models that cannot be used,
5 no such model, 6 an address to listen on, 7 a key file, 130 interrupted.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from errno import ENOMEM
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, get_args

import typer

from forerun.cli.streams import cleaned
from forerun.cli.wrap import wrapped
from forerun.core.errors import (
    CheckpointError,
    ConfigError,
    ContextOverflowError,
    ForerunError,
    VocabularyError,
)
from forerun.server.config import AddressError, KeyFileError

if TYPE_CHECKING:
    from forerun.checkpoints.source import CheckpointSource

FAULTY_SETTING: Final = 2
INCOMPATIBLE: Final = 3
INTERRUPTED: Final = 130
MORE_MEMORY: Final = "close other programs, raise the limit of this one (ulimit -v)"


class ModelNotFoundError(CheckpointError):
    """There is no model of this name. A model that was found but cannot be used raises another error."""


SETTINGS: Final = {  # settings of the API whose flags have another name, with the parameter of that flag
    "num_threads": "threads",
    "num_replicas": "replicas",
    "is_front": "front",
    "sets": "skip_sets",
}
EXIT_CODES: Final = (
    (ModelNotFoundError, 5),
    (AddressError, 6),
    (KeyFileError, 7),
    ((ConfigError, ContextOverflowError), FAULTY_SETTING),
    ((CheckpointError, VocabularyError), INCOMPATIBLE),
)


def find_model(name: str) -> "CheckpointSource":
    """The model of this name.

    Raises:
        ModelNotFoundError: there is no model of this name.
        CheckpointError: it is a draft head.
    """
    from forerun.drafting.heads.stored import require_model  # not free to import

    return require_model(find_model_or_head(name))


def find_model_or_head(name: str) -> "CheckpointSource":
    """The model or draft head of this name.

    Raises:
        ModelNotFoundError: there is neither.
    """
    from forerun.checkpoints.open import open_source  # not free to import

    try:
        return open_source(name)
    except CheckpointError as error:
        raise ModelNotFoundError(str(error)) from error


def find_draft_model(name: str) -> "CheckpointSource":
    """The model of this name, for commands that simulate a draft model and no draft head.

    Raises:
        ModelNotFoundError: there is no model of this name.
        ConfigError: it is a draft head.
    """
    from forerun.drafting.heads.stored import find_head

    source = find_model_or_head(name)
    if find_head(source) is not None:
        raise ConfigError(
            f"{name} is a draft head, which reads the target's features and shares its devices: only draft models are "
            f"planned and traced. Measure the head: forerun bench run --draft {name} --drafters none,draft_model "
            "--out FOLDER"
        )
    return source


def say(message: str) -> None:
    """Print a message on stderr, so that piped output does not contain it."""
    with wrapped("stderr"):
        print(message, file=sys.stderr, flush=True)


def exit_code(error: ForerunError) -> int:
    return next((code for kinds, code in EXIT_CODES if isinstance(error, kinds)), 1)


def shows_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a ForerunError of this command into its message and exit code. Raw bytes in its arguments are replaced."""

    @wraps(command)
    def call(**given: Any) -> None:
        try:
            command(**{name: cleaned(value) for name, value in given.items()})
        except ForerunError as error:
            say(f"forerun: error: {in_flags(str(error), flags_of(command))}")
            raise typer.Exit(exit_code(error)) from None
        except (MemoryError, OSError, ImportError) as error:
            if (reason := _reason_of(error)) is None:
                raise
            say(f"forerun: error: {reason}")
            raise typer.Exit(FAULTY_SETTING) from None

    return call


def _reason_of(error: MemoryError | OSError | ImportError) -> str | None:
    """The resource that the machine lacks, and advice; None if the error is a bug of the program."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM):
        return f"there is not enough memory: {MORE_MEMORY}, or take a smaller model"
    if isinstance(error, ImportError):  # a library is installed, but cannot be loaded
        is_ours = not any(sign in str(error) for sign in (".so", ".dylib", "DLL"))
        return None if is_ours else f"a library cannot be loaded ({error}): {MORE_MEMORY}, or install forerun again"
    if error.filename is None:
        return None
    return f"{error.filename} cannot be used ({error.strerror}): name another file or folder"


def flags_of(command: Callable[..., None]) -> dict[str, str]:
    """The flag of each setting, by the setting's name."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    flags = {}
    for parameter in parameters:
        for info in get_args(parameter.annotation)[1:]:
            names = [name for name in (info.default, *(info.param_decls or ())) if str(name).startswith("-")]
            if names:
                flags[parameter.name] = names[0].partition("/")[0]
    return {setting: flags[name] for setting, name in SETTINGS.items() if name in flags} | flags


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message with flags in place of the names that settings have in the API.

    A name with an underscore is replaced everywhere. A name that is also an English word is replaced only at the
    beginning of the message, where messages about a value name the setting.
    """
    first, _, rest = message.partition(" ")
    if first in flags:
        message = f"{flags[first]} {rest}"
    names = "|".join(sorted((name for name in flags if "_" in name), key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({names})(?![\w./=(])", lambda found: flags[found[1]], message) if names else message
