"""The seam: what a drafter is to the decode loop."""

from collections.abc import Sequence
from typing import Protocol

from forerun.core.config import SamplingParams
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class Drafter(Protocol):
    """Proposes trees and is told what became of them. It can cost speed, never a token."""

    @property
    def verify_width(self) -> int:
        """The most nodes a proposal may have, root included."""
        ...

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request. The last prompt token is the first root; `noise` is the target's own, None when greedy."""
        ...

    def propose(self) -> TokenTree:
        """A tree whose root is the last committed token."""
        ...

    def accept(self, acceptance: Acceptance) -> bool:
        """Take the outcome of the last proposal; its bonus token is the next root.

        Returns:
            True on a hit: the bonus token was a node of the drafter's own tree, outside the proposal.
        """
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...
