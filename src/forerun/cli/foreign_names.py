"""Flags and commands of other programs that have no counterpart of that name here, each with advice."""

from collections.abc import Mapping
from typing import Final

TREE: Final = "how much is drafted is decided every round from measured costs; --depth and --verify-width set limits"
FOREIGN_FLAGS: Final[Mapping[str, str]] = {
    "--draft-min": TREE,
    "--draft-n-min": TREE,
    "--draft-p-min": "a draft ends where more tokens do not pay; with --search paper, at a probability below 0.8",
    "--min-confidence": "a draft ends where more tokens do not pay; with --search paper, at a probability below 0.8",
    "--children": "four continuations of a token are tried; --draft-width and --depth set how far a draft goes",
    "--gpu-layers": "to compute on a GPU use --device cuda:0",
    "--n-gpu-layers": "to compute on a GPU use --device cuda:0",
    "--tensor-parallel-size": "one device holds the target; --draft-device gives a parallel drafter another one",
    "--profile": "the times of passes are measured when the engine opens; forerun plan reads a profile",
    "--conversation": "use forerun chat, or forerun run MODEL",
    "--trust-remote-code": "forerun never runs code from a checkpoint; the supported families need none",
}
FOREIGN_COMMANDS: Final[Mapping[str, str]] = {
    "list": "forerun models lists the models, with those that are on this machine",
    "ls": "forerun models lists the models, with those that are on this machine",
    "ps": "GET /v1/models of a running server lists the models that it serves",
    "rm": "forerun models MODEL shows the file or folder of a model on this machine; remove that",
    "show": "forerun inspect MODEL describes a model",
    "stop": "a server and its models end with Ctrl-C, or when it is sent SIGTERM",
    "server": "forerun serve MODEL",
    "launch": "forerun serve MODEL, and docs/clients.md has the settings of each client",
}
