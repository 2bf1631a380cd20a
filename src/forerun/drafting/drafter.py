"""The interface through which the decode loop and the engine use a drafter."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.backends.rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.pace import Pace
from forerun.core.steps import DRAFTED, DrafterState, Guessers
from forerun.core.timing import Span
from forerun.model.inputs import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """A drafter's report on one round.

    Args:
        was_hit: the bonus token was a node of the drafter's tree that was not part of the proposal.
        wait_s: time spent waiting for a remote proposal.
        state: the drafter's state when it proposed.
        spans: busy times of remote workers that have been reported so far.
        drafted_by: the name of the drafter that proposed, or of the prediction; empty if there is only one drafter.
        guessers: the sources of the proposal's nodes.
    """

    was_hit: bool = False
    wait_s: float = 0.0
    state: DrafterState = DrafterState.READY
    spans: tuple[Span, ...] = ()
    drafted_by: str = ""
    guessers: Guessers = DRAFTED


class Measure(Protocol):
    """Times passes of the target."""

    def __call__(self, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass for each number of rows.

        Args:
            widths: numbers of rows, ascending.
            budget_s: seconds after which no further repeat starts.
        """
        ...


class Drafter(Protocol):
    """Proposes trees and learns from their outcome. It can slow decoding down but never changes the text.

    A drafter subclasses this and defines `verify_width`, `begin`, `propose` and `accept`; the other methods do nothing
    by default. The engine calls `wait_until_ready`, then `adapt`, before the first request.

    Args:
        verify_width: the most nodes a proposal may have, including the root.
        adds_rows: `extend` must be called before every verification.
        num_successors: how many of the target's likeliest next tokens `observe_successors` needs for each verified row.
        taps: the target's layers, ascending, whose outputs `read_features` and `observe_features` need.
    """

    verify_width: int
    adds_rows: bool = False
    num_successors: int = 0
    taps: tuple[int, ...] = ()

    @property
    def process_id(self) -> int | None:
        """Process id of the drafter, if it runs as a separate process on this machine."""
        return None

    @property
    def round_plan(self) -> RoundPlan | None:
        """The data a device needs to run whole rounds without the host; None: the host must call this object."""
        return None

    @property
    def early_search_s(self) -> float:
        """Seconds of generated text that the search before the first request needs."""
        return 0.0

    def search_early(self, seconds: float) -> None:
        """Start that search for this many seconds; 0 ends it."""
        return

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until the drafter has started; False on timeout, after which decoding continues without it.

        Raises:
            VocabularyError: its vocabulary does not fit the target's.
        """
        return True

    def adapt(self, measure: Measure, costs: RoundCosts | None = None) -> None:
        """If the drafter is adaptive, base its decisions on measured pass times of the target from now on.

        Args:
            costs: the costs of the target's rounds, if several drafters share them.
        """
        return

    def change_owner(self, owner: str) -> None:
        """Requests that begin from now on belong to this owner; their keys and values are not shared with others."""
        return

    def forget(self) -> None:
        """Drop all cached keys and values, including saved ones. A request must begin before the next proposal."""
        return

    @abstractmethod
    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request. The last prompt token is the first root; `noise` is the target's, None when greedy."""

    def prefill(self) -> bool:
        """Run one wide pass over text that this drafter's cache lacks; False if it lacks none."""
        return False

    @abstractmethod
    def propose(self) -> TokenTree:
        """A tree whose root is the last committed token."""

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the drafter cannot propose because its vocabulary lacks them."""
        return 0

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        """The inputs of the verification pass with the drafter's own rows appended, which are dropped after it."""
        return inputs

    def observe(self, logits_EV: Tensor) -> None:
        """Use the logits of the rows that `extend` added."""
        return

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        """Use the target's likeliest tokens after every node of the verified tree, by its unshaped logits."""
        return

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of committed tokens, see `ForwardOutput`; the first is at this place in the text.

        The target reads a prompt pass by pass, and only what its cache lacks, so features may begin anywhere.
        """
        return

    def observe_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of a verified tree: of the root, which is at this place in the text, and of the
        other nodes; the next `accept` or `note` names the accepted ones."""
        return

    @abstractmethod
    def accept(self, acceptance: Acceptance) -> DraftReport:
        """Use the outcome of the last proposal; its bonus token is the next root."""

    def note(self, acceptance: Acceptance) -> None:
        """Use the outcome of another drafter's proposal; its bonus token is the next root.

        Only drafters that can be combined with others, or with a prediction, implement it.
        """
        raise AssertionError(f"{type(self).__name__} cannot be combined with other drafters")

    @property
    def reading_s(self) -> float:
        """Seconds of prefill that it needs before its next proposal; 0 if its cache lacks little."""
        return 0.0

    def state(self) -> bytes:
        """The data that this drafter has learnt about its target, for the next start; empty if there are none."""
        return b""

    def restore(self, state: bytes) -> bool:
        """Restore such a state, which is untrusted input; False, with no effect, if it is invalid for this target."""
        return False

    def end(self) -> None:
        """End the request; no work is needed until the next one begins."""
        return

    def close(self) -> None:
        """Free all resources."""
        return
