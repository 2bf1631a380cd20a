"""The seam: what a drafter is to the decode loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.config import SamplingParams
from forerun.core.steps import DrafterState
from forerun.core.timing import Span
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """One round as the drafter saw it.

    Args:
        was_hit: the bonus token was a node of the drafter's own tree, outside the proposal.
        wait_s: how long the proposal had to be waited for, where somebody else made it.
        state: how the drafter was when it proposed.
        spans: when somebody else was at work for it, as far as it is known by now.
    """

    was_hit: bool = False
    wait_s: float = 0.0
    state: DrafterState = DrafterState.READY
    spans: tuple[Span, ...] = ()


class Drafter(Protocol):
    """Proposes trees and is told what became of them. It can cost speed, never a token."""

    @property
    def verify_width(self) -> int:
        """The most nodes a proposal may have, root included."""
        ...

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request. The last prompt token is the first root; `noise` is the target's own, None when greedy."""
        ...

    def prefill(self) -> bool:
        """One wide pass over text that this drafter has yet to read in this process; False when there is none."""
        ...

    def propose(self) -> TokenTree:
        """A tree whose root is the last committed token."""
        ...

    def accept(self, acceptance: Acceptance) -> DraftReport:
        """Take the outcome of the last proposal; its bonus token is the next root."""
        ...

    def end(self) -> None:
        """The request has ended; nothing is wanted until the next one begins."""
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...
