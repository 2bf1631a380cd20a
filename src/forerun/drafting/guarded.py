"""A drafter whose errors cost the drafting of a text and never the text."""

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.steps import DrafterState
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.model.forward import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

logger = logging.getLogger(__name__)
T = TypeVar("T")

DOWN: Final = DraftReport(state=DrafterState.DOWN)
# Every kind of error: the text does not need the drafter, whatever is wrong with its files, its code or the memory.
FAULTS: tuple[type[Exception], ...] = (Exception,)


class GuardedDrafter(Drafter):
    """Another drafter until one of its methods raises; then, until the request ends, only the root, which is plain
    decoding.

    The next request tries the drafter again, with empty caches, because the cause may have been a lack of memory. Only
    the first error is a warning.

    Args:
        drafter: its `note` and all other methods are called.
        drop_rows: removes the rows that a proposal may have left behind the text in the target's cache.
    """

    def __init__(self, drafter: Drafter, drop_rows: Callable[[], None]) -> None:
        self.verify_width = drafter.verify_width
        self._drafter = drafter
        self._drop_rows = drop_rows
        self._is_down = False
        self._has_warned = False
        self._adopt_needs()

    def change_owner(self, owner: str) -> None:
        self._drafter.change_owner(owner)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root = prompt_ids[-1]
        was_down = self._is_down
        self._is_down = False
        if was_down:
            self._try(self._drafter.forget, None)
        self._try(lambda: self._drafter.begin(prompt_ids, params, noise), None)
        self._adopt_needs()

    def prefill(self) -> bool:
        return self._try(self._drafter.prefill, False)

    def propose(self) -> TokenTree:
        was_down = self._is_down
        root = TokenTree(self._root)
        tree = self._try(self._drafter.propose, root)
        if self._is_down and not was_down:
            self._drop_rows()
        self._adopt_needs()
        return tree

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return self._try(lambda: self._drafter.extend(inputs), inputs)

    def observe(self, logits_EV: Tensor) -> None:
        self._try(lambda: self._drafter.observe(logits_EV), None)

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        self._try(lambda: self._drafter.observe_successors(tree, successors), None)

    def read_features(self, place: int, features: Tensor) -> None:
        self._try(lambda: self._drafter.read_features(place, features), None)

    def observe_features(self, place: int, features: Tensor) -> None:
        self._try(lambda: self._drafter.observe_features(place, features), None)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._root = acceptance.bonus_token
        return self._try(lambda: self._drafter.accept(acceptance), DOWN)

    def note(self, acceptance: Acceptance) -> None:
        self._root = acceptance.bonus_token
        self._try(lambda: self._drafter.note(acceptance), None)

    def end(self) -> None:
        was_down = self._is_down
        self._is_down = False
        self._try(self._drafter.end, None)
        self._is_down |= was_down

    def _adopt_needs(self) -> None:
        """What the drafter needs of the target's next pass; nothing if it is down."""
        drafter = self._drafter
        is_up = not self._is_down
        self.adds_rows = is_up and drafter.adds_rows
        self.taps = drafter.taps if is_up else ()
        self.num_successors = drafter.num_successors if is_up else 0

    def _try(self, call: Callable[[], T], otherwise: T) -> T:
        """The result of a call; `otherwise` if it raises, or if an earlier one has."""
        if self._is_down:
            return otherwise
        try:
            return call()
        except FAULTS as error:
            self._is_down = True
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            logger.log(
                level,
                "drafting has stopped, plain decoding continues: the drafter failed (%s: %s); the next request "
                "tries it again",
                type(error).__name__,
                error,
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            return otherwise
