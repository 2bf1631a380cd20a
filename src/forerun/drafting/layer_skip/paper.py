"""SWIFT's own search, step by step as published: one candidate a round, scored over the first tokens of the answer."""

from dataclasses import replace
from time import perf_counter

from torch import Tensor

from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.paper_search import PaperSearch
from forerun.drafting.layer_skip.probe_rows import RiderLayout, Riders
from forerun.model.inputs import ForwardInput
from forerun.model.shared_cache import LentRunner

WINDOW = 32  # tokens over which a candidate is scored


class PaperSkips:
    """Scores candidates by the share of a window's tokens that they name themselves (matchness), in a pass of its own.

    Where its code copies the whole cache to run the window behind the prompt, our rows just do not look at the text
    behind it; the scores are the same.

    Source: SWIFT, arXiv 2410.06916, algorithm 1 and section 4.2; window and order of steps as in its code.
    """

    wants_to_ride = is_eager = False

    def __init__(self, search: PaperSearch, runner: LentRunner) -> None:
        self._search, self._runner = search, runner
        self._layout = RiderLayout(runner.spec.num_layers)
        self._num_prompt = 0
        self.spent_s = 0.0

    @property
    def skipped(self) -> SkipSet:
        return self._search.skipped

    def begin(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._search.withdraw()

    def is_worth_it(self, context: int) -> bool:
        return True

    @property
    def wants_to_look(self) -> bool:
        return self._search.is_searching

    def look(self, draft: DraftTree) -> None:
        token_ids, start = draft.token_ids, self._num_prompt
        if len(token_ids) - start <= WINDOW + 1:
            return
        began = perf_counter()
        skipped, cache = self._search.propose(), self._runner.cache
        riders = Riders(token_ids=token_ids[start : start + WINDOW], start=start, skipped=(skipped,))
        alone = self._layout.ride_alone(riders, cache.reserve(WINDOW))
        logits = self._runner.forward(replace(alone, row_skips=None, skipped=skipped)).logits
        self._runner.give_back()
        truth = token_ids[start + 1 : start + WINDOW + 1]
        guesses = logits.argmax(-1).tolist()
        self._search.record(sum(map(int.__eq__, guesses, truth)) / WINDOW)
        self.spent_s += perf_counter() - began

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
