"""A best-first tree of a smaller model, grown in turn with verification (SpecExec, arXiv 2406.02532)."""

from collections.abc import Sequence

from forerun.core.config import DraftModel, SamplingParams
from forerun.drafting.draft_tree import MAX_CATCH_UP, DraftTree
from forerun.drafting.drafter import DraftReport
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class DraftModelDrafter:
    """Grows a fresh tree each round by a few forwards, then cuts it to the rows the target verifies."""

    def __init__(self, runner: Runner, config: DraftModel, *, target_vocab_size: int) -> None:
        self.verify_width, self._depth = config.verify_width, config.depth
        self._draft = DraftTree(
            runner,
            config,
            target_vocab_size=target_vocab_size,
            horizon=config.verify_width,
            max_rows=serial_rows(config),
            keeps_subtree=False,
        )

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._draft.begin(prompt_ids, params, noise)
        while self._draft.prefill():
            pass

    def propose(self) -> TokenTree:
        for _ in range(self._depth):
            if not self._draft.expand():
                break
        tree = self._draft.tree
        return tree.select(tree.best(self.verify_width))

    def accept(self, acceptance: Acceptance) -> DraftReport:
        return DraftReport(was_hit=self._draft.advance(acceptance.tokens))

    def end(self) -> None:
        pass

    def close(self) -> None:
        self._draft.close()


def serial_rows(config: DraftModel) -> int:
    """Rows of the draft cache that one round can fill beyond the committed text."""
    return config.draft_width * config.depth + MAX_CATCH_UP
