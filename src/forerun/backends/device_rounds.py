"""Rounds that a backend plays without the host: what it is told about their drafts, and how the host launches them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap


class GrowthPolicy(Protocol):
    """The part of a `TreePolicy` that rounds on a device follow."""

    @property
    def num_children(self) -> int: ...

    @property
    def min_mass(self) -> float: ...

    @property
    def knows_noise(self) -> bool: ...

    @property
    def looks_up(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The data a device needs to run a drafter's rounds without the host.

    Args:
        draft: the draft model or draft head; None: nothing is drafted.
        shape: shape of the tree.
        policy: growth policy beyond the shape.
        vocabulary: maps the draft's token ids to the target's; None: the ids are equal.
        taps: the target's layers whose outputs a head reads, in its own order. Empty: it is a model, which reads tokens
            alone.
        kind: of a draft head, by which a backend finds its fast path for rounds with it; empty: it is a model.
        num_slots: slots behind the text that a round of a head may fill in its own cache.
    """

    draft: Runner | None
    shape: DraftModel
    policy: GrowthPolicy
    vocabulary: VocabularyMap | None = None
    taps: tuple[int, ...] = ()
    kind: str = ""
    num_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The outcome of one round.

    Args:
        token_ids: the accepted tokens, then the bonus token.
        margins: for each token, the difference between its total and the second best.
        bests: for each token its total; not finite if there was no valid token.
        num_verified: nodes in the target's pass.
        num_draft_rows: rows of this round's draft passes, without spare ones.
        num_behind: tokens before the new root that the draft's cache lacks; if more than one, the host prefills them.
    """

    token_ids: list[int]
    margins: list[float]
    bests: list[float]
    num_verified: int
    num_draft_rows: int
    num_behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRound:
    """A finished round, which began when the device was free for it.

    Args:
        is_usual: no kernel was compiled and no graph recorded while it was in flight.
    """

    depth: int
    outcome: RoundOutcome
    began_at: float
    arrived_at: float
    is_usual: bool


class Side(Protocol):
    """The target of such rounds, or what drafts in them.

    Args:
        step_s: seconds of growing the tree after the first draft pass, once; None: as long as that pass.
        taps: layers of the target whose features it reads while the target reads a prompt.
    """

    @property
    def runner(self) -> Runner: ...

    @property
    def step_s(self) -> float | None: ...

    taps: tuple[int, ...]

    def start_request(self, token_ids: Sequence[int], owner: str) -> None:
        """Start a request with this text before its root."""
        ...

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of tokens from this place on."""
        ...

    def prefill(self) -> bool:
        """Run one pass over text that it lacks; False if it lacks none."""
        ...

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Make the cache hold this text, by passes of the host."""
        ...


class RoundsOnDevice(Protocol):
    """The rounds of one target and its draft, for one request at a time.

    Args:
        config: shape of the tree.
        draft: None: nothing is drafted.
        looks_up: a looked-up chain joins every tree.
        most_behind: tokens before the root that the draft's cache may lack; more are prefilled by the host.
    """

    @property
    def config(self) -> DraftModel: ...

    @property
    def target(self) -> Side: ...

    @property
    def draft(self) -> Side | None: ...

    @property
    def looks_up(self) -> bool: ...

    @property
    def most_behind(self) -> int: ...

    def set_request(
        self, params: SamplingParams, seed: int, prompt_ids: Sequence[int] = (), written_ids: Sequence[int] = ()
    ) -> None:
        """Set the parameters of a request; written_ids are the tokens generated after the prompt so far."""
        ...

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Begin at the end of this text; all of its tokens but the last are in the caches."""
        ...

    def update_costs(self, log_probs: Sequence[Sequence[float]]) -> None:
        """Update the log-probabilities of looked-up tokens, see `LookupChain.log_probs`."""
        ...

    def take_over(self, token_ids: Sequence[int], num_committed: int, num_behind: int) -> None:
        """Note in the runners that their caches hold the text up to `num_committed`, the draft's less `num_behind`."""
        ...


class RoundPipeline(Protocol):
    """Launches rounds and returns their outcomes in launch order.

    Args:
        num_launched: rounds so far.
    """

    @property
    def rounds(self) -> RoundsOnDevice: ...

    num_launched: int

    def __len__(self) -> int:
        """How many rounds are in flight."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another round may be launched."""
        ...

    def clear(self) -> None:
        """Drop the rounds in flight, which run to their end."""
        ...

    def launch(self, depth: int, num_tokens: int) -> None:
        """Launch a round of this many draft passes, given the length of the text before the rounds in flight."""
        ...

    def take(self) -> PlayedRound:
        """Wait for the oldest round in flight."""
        ...
