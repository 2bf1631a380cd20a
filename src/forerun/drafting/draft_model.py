"""Draft a best-first tree with a smaller model, between verifications (SpecExec, arXiv 2406.02532)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from forerun.backends.device_rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.pace import Pace
from forerun.drafting.draft_rows import MAX_CATCH_UP, DraftRows, OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import (
    NO_NEWS,
    Drafter,
    DraftOutcome,
    DraftReport,
    HasCosts,
    HasVocabulary,
    Measure,
    PlaysOnDevice,
    ReadsText,
)
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import BEST_TREE, TreePolicy
from forerun.model.pass_times import measure_pace, measure_reading, widths_up_to
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import DraftCosts, ProposedTree, RowBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualAcceptance:
    """How often the target accepts at least one drafted token of a round, in percent.

    The share hardly depends on the tree's size, which depends on the cost of passes. On the built-in target, with 16
    rows at temperature 1, random heads had 12 to 28 and the built-in draft 78 to 96; in repetitive greedy text a random
    DFlash head had 45 to 64, which is not detected. The usual range of heads is estimated from published mean lengths
    of 3 to 7 tokens per round (a length of n is a share of about 1 - 1 / n), not measured here.

    Args:
        kind: the kind of draft, for the message.
        low, high: the usual range.
        floor: the user is warned below it.
    """

    kind: str
    low: int
    high: int
    floor: int


class DraftModelDrafter(Drafter, ReadsText, HasCosts, HasVocabulary, PlaysOnDevice):
    """Grows a new tree each round with a few draft passes, then keeps the nodes that the target is to verify."""

    usual_acceptance: ClassVar[UsualAcceptance | None] = UsualAcceptance(
        kind="a draft model", low=60, high=95, floor=30
    )

    def __init__(
        self,
        runner: Runner,
        config: DraftModel,
        policy: TreePolicy = BEST_TREE,
        *,
        target_vocab_size: int,
        vocabulary: VocabularyMap | None = None,
        rows: DraftRows | None = None,
    ) -> None:
        self.verify_width = config.verify_width
        self._depth = config.depth
        self._draft_width = config.draft_width
        self._guessed = GuessedTree(
            policy,
            verify_width=config.verify_width,
            draft_width=config.draft_width,
            calibrates=config.adaptive,
        )
        rows = rows or OwnRows(runner, serial_rows(config))
        self._draft = DraftTree(self._guessed, rows, target_vocab_size=target_vocab_size, vocabulary=vocabulary)
        self._vocabulary = vocabulary
        self._runner = runner
        self._config = config
        self._policy = policy
        self._reading: Pace | None = None  # seconds of reading text by its rows

    @property
    def round_plan(self) -> RoundPlan | None:
        return RoundPlan(draft=self._runner, shape=self._config, policy=self._policy, vocabulary=self._vocabulary)

    def measure_costs(self, measure: Measure) -> DraftCosts:
        widths = sorted({*range(1, min(8, self._draft_width)), *widths_up_to(self._draft_width)})
        expansion = measure_pace(self._runner, widths)
        self._reading = measure_reading(self._runner)
        return DraftCosts(expansion=expansion)

    @property
    def reading_s(self) -> float:
        num_rows = self._draft.num_tokens - len(self._runner.cached_ids)
        return 0.0 if self._reading is None or num_rows <= MAX_CATCH_UP else self._reading.step_s(num_rows)

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._draft.reset(prompt_ids, params, noise, owner)

    def prefill(self) -> bool:
        return self._draft.prefill()

    def propose(self, budget: RowBudget) -> ProposedTree:
        self._draft.apply_told()
        self._grow(budget)
        return self._guessed.proposal()

    def _grow(self, budget: RowBudget) -> None:
        while self.prefill():  # catch up on text committed in rounds without an expansion
            pass
        for _ in range(self._depth):
            if not self._draft.expand(budget):
                break

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._draft.told(outcome.tokens)
        return DraftReport(was_hit=self._draft.apply_told()) if outcome.is_own else NO_NEWS

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        return self._draft.num_unknown(token_ids)

    def forget(self) -> None:
        self._draft.forget()

    def close(self) -> None:
        self.forget()


def serial_rows(config: DraftModel) -> int:
    """Rows of the draft cache that one round can fill beyond the committed text."""
    return config.draft_width * config.depth + MAX_CATCH_UP
