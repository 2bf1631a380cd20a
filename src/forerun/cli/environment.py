"""The variables of the environment that begin with forerun's name."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Final

from forerun.cli.declare import ENVIRONMENT_PREFIX

OTHERS: Final = frozenset(("FORERUN_CACHE",))  # read without a flag


def known_variables(command: Any) -> set[str]:
    """Every variable that a command or one below it reads."""
    own = {param.envvar for param in command.params if isinstance(param.envvar, str)}
    return own.union(*(known_variables(item) for item in getattr(command, "commands", {}).values()))


def unknown_variables(command: Any, names: Iterable[str]) -> Iterator[str]:
    """A line for each variable that looks like forerun's and that nothing reads, with the nearest that is read."""
    known = known_variables(command) | OTHERS
    for name in sorted(name for name in names if name.startswith(ENVIRONMENT_PREFIX) and name not in known):
        nearest = get_close_matches(name, known, n=1)
        yield f"the variable {name} means nothing to forerun" + (f": is {nearest[0]} meant?" if nearest else "")
