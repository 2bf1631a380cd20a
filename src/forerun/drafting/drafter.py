"""The interface of a drafter to the decode loop and the engine."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.pace import Pace
from forerun.core.steps import DRAFTED, DrafterState, Guessers
from forerun.core.timing import Span
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """One round from the drafter's side.

    Args:
        was_hit: the bonus token was a node of the drafter's own tree, outside the proposal.
        wait_s: time spent waiting for a remote proposal.
        state: the drafter's state when it proposed.
        spans: busy times of remote workers, as far as reported by now.
        drafted_by: which of several drafters proposed, or the prediction; empty where there is only one drafter.
        guessers: whose guesses the proposal's nodes were.
    """

    was_hit: bool = False
    wait_s: float = 0.0
    state: DrafterState = DrafterState.READY
    spans: tuple[Span, ...] = ()
    drafted_by: str = ""
    guessers: Guessers = DRAFTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The data a device needs to run a drafter's rounds without the host.

    Args:
        draft: the draft model; None: nothing is drafted.
        shape: shape of the tree.
        policy: growth policy beyond the shape.
        vocabulary: what the draft's ids stand for; None: for themselves.
    """

    draft: Runner | None
    shape: DraftModel
    policy: TreePolicy
    vocabulary: VocabularyMap | None = None


class Measure(Protocol):
    """Times passes of the target."""

    def __call__(self, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass by its rows.

        Args:
            widths: numbers of rows, ascending.
            budget_s: time limit, in seconds, after which no repeat starts.
        """
        ...


class Drafter(Protocol):
    """Proposes trees and learns from their outcome. It can cost speed, never a token.

    A drafter subclasses this and defines `verify_width`, `begin`, `propose` and `accept`; the other methods default to
    no effect. The engine calls `wait_until_ready`, then `adapt`, before the first request.

    Args:
        verify_width: the most nodes a proposal may have, root included.
        adds_rows: `extend` must be called before every verification.
        num_successors: the target's likeliest successors of every verified row that `observe_successors` is to be told.
    """

    verify_width: int
    adds_rows: bool = False
    num_successors: int = 0

    @property
    def process_id(self) -> int | None:
        """Pid of the drafter process, if it is a separate one on this machine and running."""
        return None

    @property
    def round_plan(self) -> RoundPlan | None:
        """The data a device needs to run whole rounds without the host; None: rounds need this object."""
        return None

    @property
    def early_search_s(self) -> float:
        """Seconds of model-generated text needed for the search before the first request."""
        return 0.0

    def search_early(self, seconds: float) -> None:
        """Start of that text, with its duration; 0 ends it."""
        return

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until the draft side has started; False on timeout, and decoding continues without it.

        Raises:
            VocabularyError: its vocabulary does not fit the target.
        """
        return True

    def adapt(self, measure: Measure) -> None:
        """From now on base decisions on measured pass times of the target, if the drafter is adaptive."""
        return

    def change_owner(self, owner: str) -> None:
        """Requests that begin from now on are this owner's, whose keys and values are shared with no other's."""
        return

    def forget(self) -> None:
        """Drop all keys and values of texts, saved ones too. A request must begin before the next proposal."""
        return

    @abstractmethod
    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request. The last prompt token is the first root; `noise` is the target's, None when greedy."""

    def prefill(self) -> bool:
        """One wide pass over text that this drafter has not read yet in this process; False if there is none."""
        return False

    @abstractmethod
    def propose(self) -> TokenTree:
        """A tree whose root is the last committed token."""

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens no draft could propose, since its vocabulary lacks them."""
        return 0

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        """The verification pass with the drafter's extra rows appended, which are not kept."""
        return inputs

    def observe(self, logits_EV: Tensor) -> None:
        """Take the logits of the rows that `extend` added."""
        return

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        """Take the target's likeliest tokens after every node of the tree that was verified, by its bare logits."""
        return

    @abstractmethod
    def accept(self, acceptance: Acceptance) -> DraftReport:
        """Take the outcome of the last proposal; its bonus token is the next root."""

    def note(self, acceptance: Acceptance) -> None:
        """Take the outcome of another drafter's proposal; its bonus token is the next root.

        Only the drafters that stand among several, or beside a prediction, have it.
        """
        raise AssertionError(f"{type(self).__name__} cannot stand among several drafters")

    def share_costs(self, costs: RoundCosts) -> None:
        """From now on take the target's times from here, where its rounds are measured for all drafters."""
        return

    @property
    def reading_s(self) -> float:
        """Seconds that it needs to read text before its next proposal; 0 if little is missing."""
        return 0.0

    def state(self) -> bytes:
        """What this drafter has learnt of its target and would know at its next start; empty if that is nothing."""
        return b""

    def restore(self, state: bytes) -> bool:
        """Take over such a state, which is foreign input; False, and nothing is known, if it is none of this target."""
        return False

    def end(self) -> None:
        """End the request; no work is needed until the next one begins."""
        return

    def close(self) -> None:
        """Free all resources."""
        return
