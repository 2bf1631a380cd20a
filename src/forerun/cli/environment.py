"""The environment variables that begin with forerun's name."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Final

from forerun.cli.declare import ENVIRONMENT_PREFIX, variable_of
from forerun.cli.foreign_names import FOREIGN_FLAGS

OTHERS: Final = frozenset(("FORERUN_CACHE", "FORERUN_ALL_TIERS"))  # read without a flag, and by the build


def parameters_of(command: Any) -> Iterator[Any]:
    """The parameters of a command and of its subcommands that a variable can set."""
    yield from (param for param in command.params if isinstance(param.envvar, str))
    for item in getattr(command, "commands", {}).values():
        yield from parameters_of(item)


def unknown_variables(command: Any, names: Iterable[str]) -> Iterator[str]:
    """A warning for each variable with forerun's prefix that no command reads, with what to use instead."""
    unread = {name for name in names if name.startswith(ENVIRONMENT_PREFIX)} - OTHERS
    params = list[Any]()
    for param in parameters_of(command) if unread else ():
        params.append(param)
        unread.discard(param.envvar)
        if not unread:  # the lab's commands come last, and are imported to be read
            return
    known = {param.envvar for param in params} | OTHERS
    meant = {variable_of(flag): param.envvar for param in params for flag in param.opts if flag.startswith("--")}
    gone = {variable_of(flag): advice for flag, advice in FOREIGN_FLAGS.items()}
    for name in sorted(unread):
        nearest = [meant[name]] if name in meant else get_close_matches(name, known, n=1)
        advice = gone.get(name) or (f"did you mean {nearest[0]}?" if nearest else "")
        yield f"unknown environment variable {name}" + (f": {advice}" if advice else "")
