"""The interface through which the drafter uses a search for skip sets."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.model.inputs import ForwardInput


class SkipSearch(Protocol):
    """Gives the skip set, and searches for a better one during generation. It takes time but never changes the text.

    Args:
        spent_s: seconds spent on the search so far.
        early_s: seconds of generated text that it needs before the first request.
    """

    spent_s: float = 0.0
    early_s: float = 0.0

    @property
    @abstractmethod
    def skipped(self) -> SkipSet:
        """The sublayers that draft passes skip now."""

    @property
    def wants_pass(self) -> bool:
        """True if it needs a separate pass."""
        return False

    @property
    def wants_rows(self) -> bool:
        """True if it needs rows in the next verification."""
        return False

    @property
    def uses_every_round(self) -> bool:
        """True if every round should be used, because no request is waiting."""
        return False

    def begin(self, num_prompt: int) -> None:
        """Start a request with this many prompt tokens."""
        return

    def is_worth_it(self, context: int) -> bool:
        """False if plain decoding is expected to be faster than drafting with the current set."""
        return True

    def run_pass(self, draft: DraftTree) -> None:
        """Run one search step in a separate pass, before the draft of a round grows."""
        return

    def extend(self, inputs: ForwardInput, draft: DraftTree) -> ForwardInput:
        """The verification pass, with the search's rows appended if any."""
        return inputs

    def observe(self, logits_EV: Tensor, draft: DraftTree) -> None:
        """Use the logits of those rows."""
        return

    def take_guess(self, skipped: SkipSet, is_hit: bool) -> None:
        """Record whether the first guess of the round's draft, which skipped these sublayers, was correct."""
        return

    def take_time(self, seconds: float) -> None:
        """Record the time of rounds."""
        return

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        """Update the seconds that rounds, expansions and plain rounds take in addition to their passes."""
        return

    def allow(self, seconds: float) -> None:
        """Allow this much search time at once, while no request is waiting; 0 ends it."""
        return


class FixedSet(SkipSearch):
    """A fixed skip set."""

    def __init__(self, skipped: SkipSet) -> None:
        self._skipped = skipped

    @property
    def skipped(self) -> SkipSet:
        return self._skipped


def first_set(num_layers: int, known: Sequence[NamedSet]) -> SkipSet:
    """The initial skip set: the set that the last search used, which is the first known one, or every other layer."""
    return known[0].skipped if known else every_other_layer(num_layers)
