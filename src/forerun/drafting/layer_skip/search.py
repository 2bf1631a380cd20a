"""What a search for skipped sublayers is to the drafter."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.model.inputs import ForwardInput


class SkipSearch(Protocol):
    """Says what to skip, and looks for something better while text is written. It can cost time, never a token."""

    @property
    def spent_s(self) -> float:
        """Seconds that the search has taken so far."""
        ...

    @property
    def skipped(self) -> SkipSet:
        """What draft passes leave out now."""
        ...

    def begin(self, num_prompt: int) -> None:
        """A request with so many prompt tokens begins."""
        ...

    def is_worth_it(self, context: int) -> bool:
        """False where plain decoding is expected to be faster than drafting with what is skipped now."""
        ...

    @property
    def wants_to_look(self) -> bool:
        """True where a pass of its own is wanted."""
        ...

    def look(self, draft: DraftTree) -> None:
        """Search a little in a pass of its own, before the draft of a round grows."""
        ...

    @property
    def is_eager(self) -> bool:
        """True where every round is to be made use of, because nobody waits for an answer."""
        ...

    @property
    def wants_to_ride(self) -> bool:
        """True where rows are wanted in the next verification."""
        ...

    def board(self, host: ForwardInput, draft: DraftTree) -> ForwardInput:
        """The verification pass with rows of the search behind its own, or as it is."""
        ...

    def arrive(self, logits_EV: Tensor, draft: DraftTree) -> None:
        """What those rows gave."""
        ...

    def learn(self, skipped: SkipSet, is_hit: bool) -> None:
        """Whether the first guess of the round's draft, which skipped these, was the text's next token."""
        ...

    def pass_by(self, seconds: float) -> None:
        """Rounds took so long."""
        ...

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        """Rounds, expansions and plain rounds take so many seconds beyond their passes."""
        ...


class NoSearch:
    """What is skipped stays as it is."""

    wants_to_look = wants_to_ride = is_eager = False
    spent_s = 0.0

    def __init__(self, skipped: SkipSet) -> None:
        self.skipped = skipped

    def begin(self, num_prompt: int) -> None:
        pass

    def is_worth_it(self, context: int) -> bool:
        return True

    def look(self, draft: DraftTree) -> None:
        pass

    def board(self, host: ForwardInput, draft: DraftTree) -> ForwardInput:
        return host

    def arrive(self, logits_EV: Tensor, draft: DraftTree) -> None:
        pass

    def learn(self, skipped: SkipSet, is_hit: bool) -> None:
        pass

    def pass_by(self, seconds: float) -> None:
        pass

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        pass


def first_set(num_layers: int, known: Sequence[NamedSet]) -> SkipSet:
    """What to skip before anything was searched for: the first of the known sets, which is what a search left in use,
    else every other layer."""
    return known[0].skipped if known else every_other_layer(num_layers)
