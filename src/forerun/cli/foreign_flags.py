"""Flags of other programs that have no counterpart here, each with what to do."""

from collections.abc import Mapping
from typing import Final

TREE: Final = "how much is drafted is decided every round by what it costs; --depth and --verify-width set limits"
FOREIGN_FLAGS: Final[Mapping[str, str]] = {
    "--draft-min": TREE,
    "--draft-n-min": TREE,
    "--draft-p-min": "a draft ends where going on does not pay; with --search paper, at the first token below 0.8",
    "--min-confidence": "a draft ends where going on does not pay; with --search paper, at the first token below 0.8",
    "--children": "four continuations of a token are tried; --draft-width and --depth set how far a draft goes",
    "--gpu-layers": "to compute on a GPU say --device cuda:0",
    "--n-gpu-layers": "to compute on a GPU say --device cuda:0",
    "--tensor-parallel-size": "one device holds the target; --draft-device gives a parallel drafter another one",
    "--profile": "what passes cost is measured when the engine opens; forerun plan reads a profile",
    "--conversation": "say forerun chat, or forerun run MODEL",
    "--trust-remote-code": "no code of a checkpoint is ever run; families that are supported need none",
}
