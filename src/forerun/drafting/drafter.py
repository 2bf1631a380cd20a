"""The seam: what a drafter is to the decode loop and to the engine."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.pace import Pace
from forerun.core.steps import DrafterState
from forerun.core.timing import Span
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What a machine needs to play a drafter's rounds by itself.

    Args:
        draft: the model that drafts; None: nothing is drafted.
        shape: of the tree that it grows.
        policy: how it grows, beyond its shape.
    """

    draft: Runner | None
    shape: DraftModel
    policy: TreePolicy


class Measure(Protocol):
    """Times passes of the target."""

    def __call__(self, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass by its rows.

        Args:
            widths: numbers of rows, ascending.
            budget_s: no further repeat once this has passed.
        """
        ...


class Drafter(Protocol):
    """Proposes trees and is told what became of them. It can cost speed, never a token.

    A drafter subclasses this and defines `verify_width`, `begin`, `propose` and `accept`; all else does nothing unless
    it says otherwise. The engine calls `wait_until_ready`, then `adapt`, before the first request.

    Args:
        verify_width: the most nodes a proposal may have, root included.
        adds_rows: `extend` is to be asked before every verification.
    """

    verify_width: int
    adds_rows: bool = False

    @property
    def process_id(self) -> int | None:
        """The process that drafts, where it is another one of this machine and there just now."""
        return None

    @property
    def round_plan(self) -> RoundPlan | None:
        """What a machine needs that plays whole rounds by itself; None: rounds need this object."""
        return None

    @property
    def early_search_s(self) -> float:
        """Seconds for which text of the model's own making is wanted before anybody waits for an answer."""
        return 0.0

    def search_early(self, seconds: float) -> None:
        """That text is being written from now on, for so long; 0: that is over."""
        return

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait for what drafts to come up; False when it does not, and decoding goes on without it.

        Raises:
            VocabularyError: it came up and does not fit the target.
        """
        return True

    def adapt(self, measure: Measure) -> None:
        """Choose what to do by what passes of the target cost from now on, where that is wanted."""
        return

    @abstractmethod
    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request. The last prompt token is the first root; `noise` is the target's own, None when greedy."""

    def prefill(self) -> bool:
        """One wide pass over text that this drafter has yet to read in this process; False when there is none."""
        return False

    @abstractmethod
    def propose(self) -> TokenTree:
        """A tree whose root is the last committed token."""

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        """The pass that verifies the proposal, with rows of the drafter's own behind it, which are not kept."""
        return inputs

    def observe(self, logits_EV: Tensor) -> None:
        """What came of the rows that `extend` added."""
        return

    @abstractmethod
    def accept(self, acceptance: Acceptance) -> DraftReport:
        """Take the outcome of the last proposal; its bonus token is the next root."""

    def end(self) -> None:
        """The request has ended; nothing is wanted until the next one begins."""
        return

    def close(self) -> None:
        """Let go of everything held."""
        return
