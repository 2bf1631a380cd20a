"""Names that no command here knows: flags and commands of other programs, and environment variables, with advice."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from forerun.cli.flags import ENVIRONMENT_PREFIX, variable_of

TREE: Final = "how much is drafted is decided every round from measured costs; --depth and --verify-width set limits"
FOREIGN_FLAGS: Final[Mapping[str, str]] = {
    "--draft-min": TREE,
    "--draft-n-min": TREE,
    "--draft-p-min": "a draft ends where more tokens do not pay; with --search paper, at a probability below 0.8",
    "--min-confidence": "a draft ends where more tokens do not pay; with --search paper, at a probability below 0.8",
    "--children": "four continuations of a token are tried; --draft-width and --depth set how far a draft goes",
    "--gpu-layers": "to compute on a GPU use --device cuda:0",
    "--n-gpu-layers": "to compute on a GPU use --device cuda:0",
    "--tensor-parallel-size": "--target-ranks divides a target among devices, in the commands that have it",
    "--profile": "the times of passes are measured when the engine opens; forerun plan reads a profile",
    "--conversation": "use forerun chat, or forerun run MODEL",
    "--trust-remote-code": "forerun never runs code from a checkpoint; the supported families need none",
}
FOREIGN_COMMANDS: Final[Mapping[str, str]] = {
    "list": "forerun models lists the models, with those that are on this machine",
    "ls": "forerun models lists the models, with those that are on this machine",
    "ps": "GET /v1/models of a running server lists its models, and which are loaded",
    "rm": "forerun models MODEL shows the file or folder of a model on this machine; remove that",
    "show": "forerun inspect MODEL describes a model",
    "stop": "a server and its models end with Ctrl-C, or when it is sent SIGTERM",
    "server": "forerun serve MODEL",
    "launch": "forerun serve MODEL, and docs/clients.md has the settings of each client",
}

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
