"""What a search for skipped sublayers is to the drafter."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.model.inputs import ForwardInput


class SkipSearch(Protocol):
    """Says what to skip, and looks for something better while text is written. It can cost time, never a token.

    Args:
        spent_s: seconds that the search has taken so far.
        early_s: seconds that it wants for text of the model's own making before anybody waits for an answer.
    """

    spent_s: float = 0.0
    early_s: float = 0.0

    @property
    @abstractmethod
    def skipped(self) -> SkipSet:
        """What draft passes leave out now."""

    @property
    def wants_pass(self) -> bool:
        """True where a pass of its own is wanted."""
        return False

    @property
    def wants_rows(self) -> bool:
        """True where rows are wanted in the next verification."""
        return False

    @property
    def uses_every_round(self) -> bool:
        """True where every round is to be made use of, because nobody waits for an answer."""
        return False

    def begin(self, num_prompt: int) -> None:
        """A request with so many prompt tokens begins."""
        return

    def is_worth_it(self, context: int) -> bool:
        """False where plain decoding is expected to be faster than drafting with what is skipped now."""
        return True

    def run_pass(self, draft: DraftTree) -> None:
        """Search a little in a pass of its own, before the draft of a round grows."""
        return

    def extend(self, inputs: ForwardInput, draft: DraftTree) -> ForwardInput:
        """The verification pass with rows of the search behind its own, or as it is."""
        return inputs

    def observe(self, logits_EV: Tensor, draft: DraftTree) -> None:
        """What those rows gave."""
        return

    def take_guess(self, skipped: SkipSet, is_hit: bool) -> None:
        """Whether the first guess of the round's draft, which skipped these, was the text's next token."""
        return

    def take_time(self, seconds: float) -> None:
        """Rounds took so long."""
        return

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        """Rounds, expansions and plain rounds take so many seconds beyond their passes."""
        return

    def allow(self, seconds: float) -> None:
        """Take so much time at once, where nobody waits for an answer; 0: that is over."""
        return


class FixedSet(SkipSearch):
    """What is skipped stays as it is."""

    def __init__(self, skipped: SkipSet) -> None:
        self._skipped = skipped

    @property
    def skipped(self) -> SkipSet:
        return self._skipped


def first_set(num_layers: int, known: Sequence[NamedSet]) -> SkipSet:
    """What to skip before anything was searched for: the first of the known sets, which is what a search left in use,
    else every other layer."""
    return known[0].skipped if known else every_other_layer(num_layers)
