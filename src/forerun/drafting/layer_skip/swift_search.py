"""SWIFT's search as published: one candidate a round, scored on the first tokens of the answer."""

from dataclasses import replace
from time import perf_counter

from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.probe_rows import ProbeLayout, ProbeRows
from forerun.drafting.layer_skip.skip_search import SkipSearch
from forerun.drafting.layer_skip.swift_candidates import WINDOW, SwiftCandidates
from forerun.model.shared_cache import SharedCacheRunner


class SwiftSearch(SkipSearch):
    """Scores candidates in a separate pass by the share of a window's tokens that they predict (matchness).

    SWIFT's code copies the whole cache to run the window after the prompt; ours masks the text after the prompt. The
    scores are the same.

    Source: SWIFT, arXiv 2410.06916, algorithm 1 and section 4.2; window and order of steps as in its code.
    """

    def __init__(self, candidates: SwiftCandidates, runner: SharedCacheRunner) -> None:
        self._candidates, self._runner = candidates, runner
        self._layout = ProbeLayout(runner.spec.num_layers)
        self._num_prompt = 0

    @property
    def skipped(self) -> SkipSet:
        return self._candidates.skipped

    @property
    def wants_pass(self) -> bool:
        return self._candidates.is_searching

    def begin(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._candidates.withdraw()

    def run_pass(self, draft: DraftTree) -> None:
        token_ids, start = draft.token_ids, self._num_prompt
        if len(token_ids) - start <= WINDOW + 1:
            return
        began, skipped = perf_counter(), self._candidates.propose()
        rows = ProbeRows(token_ids=token_ids[start : start + WINDOW], start=start, skipped=(skipped,))
        alone = self._layout.alone(rows, self._runner.cache.end)
        logits = self._runner.forward(replace(alone, row_skips=None, skipped=skipped)).logits
        self._runner.drop_rows()
        truth = token_ids[start + 1 : start + WINDOW + 1]
        self._candidates.record(sum(map(int.__eq__, logits.argmax(-1).tolist(), truth)) / WINDOW)
        self.spent_s += perf_counter() - began
