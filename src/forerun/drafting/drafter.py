"""What a drafter is: it proposes trees and is told what was written. What only some can do has protocols of its own."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.pace import Pace
from forerun.core.steps import DRAFTED, DrafterState, Guessers, SkipReport, Span
from forerun.drafting.policies import TreePolicy
from forerun.model.executor import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.referee.budget import DraftCosts, ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutcome:
    """What was written since a drafter was told last.

    Args:
        tokens: the committed tokens; the last one is the next root.
        path: the accepted nodes of the last verified tree, from below its root down.
        is_own: the drafter's own proposal was verified.
        seconds: of these rounds.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...] = ()
    is_own: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """A drafter's report on a round.

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


NO_NEWS = DraftReport()


class Drafter(Protocol):
    """Proposes trees and learns from what was written. It can slow decoding down but never changes the text.

    Args:
        verify_width: the most nodes that are verified of a proposal, including the root.
    """

    verify_width: int

    @abstractmethod
    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        """Start a text. The last prompt token is the first root.

        Args:
            noise: the target's, None when greedy.
            owner: whose text it is; what is kept of it is not used for others.
        """

    @abstractmethod
    def propose(self, budget: RowBudget) -> ProposedTree:
        """A tree whose root is the last committed token, grown as far as the budget finds that it pays."""

    @abstractmethod
    def told(self, outcome: DraftOutcome) -> DraftReport:
        """Learn what was written, with or without this drafter's proposal."""

    def end(self) -> None:
        """End the text; no work is needed until the next one begins."""
        return

    def forget(self) -> None:
        """Drop all that is kept of texts. A text must begin before the next proposal."""
        return

    def close(self) -> None:
        """Free all resources."""
        return


@runtime_checkable
class ReadsText(Protocol):
    """A drafter with a cache of its own, into which it reads the text."""

    @abstractmethod
    def prefill(self) -> bool:
        """Run one wide pass over text that this drafter's cache lacks; False if it lacks none."""

    @property
    @abstractmethod
    def reading_s(self) -> float:
        """Seconds of prefill that it needs before its next proposal; 0 if its cache lacks little."""


@runtime_checkable
class ReadsFeatures(Protocol):
    """A drafter that reads the outputs of some of the target's layers.

    Args:
        taps: these layers, ascending.
    """

    taps: tuple[int, ...]

    @abstractmethod
    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of committed tokens, see `ForwardOutput`; the first is at this place in the text.

        The target reads a prompt pass by pass, and only what its cache lacks, so features may begin anywhere.
        """

    @abstractmethod
    def told_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of a verified tree: of the root, which is at this place in the text, and of the
        other nodes; the next `told` names the accepted ones."""


@runtime_checkable
class ReadsScores(Protocol):
    """A drafter that learns from the target's likeliest next tokens.

    Args:
        num_successors: how many of them it needs for each verified row.
    """

    num_successors: int

    @abstractmethod
    def told_successors(self, tree: TokenTree, successors: TopK) -> None:
        """Use the target's likeliest tokens after every node of the verified tree, by its unshaped logits."""


@runtime_checkable
class RidesAlong(Protocol):
    """A drafter that adds rows of its own to verification passes, in any round.

    Args:
        spent_s: seconds that its rows and its own work have taken so far.
    """

    @property
    @abstractmethod
    def spent_s(self) -> float: ...

    @property
    @abstractmethod
    def is_due(self) -> bool:
        """Whether it has work in this round; it must then know the text so far."""

    @property
    @abstractmethod
    def wants_rows(self) -> bool:
        """Whether `extend` must be called in this round."""

    @abstractmethod
    def prepare(self) -> None:
        """Do work of its own before a round, which is not part of the round's time."""

    @abstractmethod
    def extend(self, inputs: ForwardInput) -> ForwardInput:
        """The inputs of the verification pass with the drafter's own rows appended, which are dropped after it."""

    @abstractmethod
    def told_logits(self, logits_EV: Tensor) -> None:
        """Use the logits of the rows that `extend` added."""


@runtime_checkable
class SearchesFirst(Protocol):
    """A drafter that skips sublayers of the target, and may search for them on generated text before the first
    request."""

    @property
    @abstractmethod
    def skip_report(self) -> SkipReport:
        """What it skips, and the state of its search."""

    @property
    @abstractmethod
    def early_search_s(self) -> float:
        """Seconds of generated text that the search needs; 0 if it needs none."""

    @abstractmethod
    def search_early(self, seconds: float) -> None:
        """Start that search for this many seconds; 0 ends it."""


@runtime_checkable
class KeepsState(Protocol):
    """A drafter whose knowledge about its target is saved for the next start."""

    @abstractmethod
    def state(self) -> bytes:
        """What it has learnt; empty if that is nothing."""

    @abstractmethod
    def restore(self, state: bytes) -> bool:
        """Restore such a state, which is untrusted input; False, with no effect, if it is invalid for this target."""


@runtime_checkable
class RunsElsewhere(Protocol):
    """A drafter in another process, whose proposals take no time of the target's."""

    @property
    @abstractmethod
    def process_id(self) -> int | None:
        """Process id, if it runs on this machine."""

    @abstractmethod
    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until the drafter has started; False on timeout, after which decoding continues without it.

        Raises:
            VocabularyError: its vocabulary does not fit the target's.
        """


@runtime_checkable
class HasVocabulary(Protocol):
    """A drafter that knows only a part of the target's tokens."""

    @abstractmethod
    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the drafter cannot propose because its vocabulary lacks them."""


class Measure(Protocol):
    """Times passes of the target."""

    def __call__(self, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass for each number of rows.

        Args:
            widths: numbers of rows, ascending.
            budget_s: seconds after which no further repeat starts.
        """
        ...


@runtime_checkable
class HasCosts(Protocol):
    """A drafter whose own passes take time of the target's process.

    Args:
        needs_costs: it uses them even with fixed widths.
    """

    needs_costs: bool = False

    @abstractmethod
    def measure_costs(self, measure: Measure) -> DraftCosts:
        """What its passes cost, measured now."""


PLAIN_PLAN = RoundPlan(
    draft=None,
    shape=DraftModel(verify_width=1, draft_width=1, depth=1, adaptive=False),
    policy=TreePolicy(num_children=1, looks_up=False),
)


@runtime_checkable
class PlaysOnDevice(Protocol):
    """A drafter whose rounds a device may run without the host."""

    @property
    @abstractmethod
    def round_plan(self) -> RoundPlan | None:
        """The data that the device needs; None: the host must call this object."""
