"""A best-first tree of a smaller model, grown in turn with verification (SpecExec, arXiv 2406.02532)."""

from collections.abc import Sequence
from time import perf_counter

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.pace import Pace
from forerun.drafting.draft_rows import MAX_CATCH_UP, OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import Drafter, DraftReport, Measure, RoundPlan
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.tree_policy import BEST_TREE, TreePolicy
from forerun.model.measure import measure_pace, widths_up_to
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.payoff import Payoff, PayoffByTemperature, WidthRule
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class DraftModelDrafter(Drafter):
    """Grows a fresh tree each round by a few forwards, then cuts it to the rows the target verifies."""

    def __init__(
        self,
        runner: Runner,
        config: DraftModel,
        policy: TreePolicy = BEST_TREE,
        *,
        target_vocab_size: int,
        vocabulary: VocabularyMap | None = None,
    ) -> None:
        self.verify_width, self._depth, self._draft_width = config.verify_width, config.depth, config.draft_width
        self._guessed = GuessedTree(
            policy,
            verify_width=config.verify_width,
            draft_width=config.draft_width,
            horizon=config.verify_width,
            calibrates=config.adaptive,
        )
        rows = OwnRows(runner, serial_rows(config))
        self._draft = DraftTree(self._guessed, rows, target_vocab_size=target_vocab_size, vocabulary=vocabulary)
        self._vocabulary = vocabulary
        self._runner, self._config, self._policy, self._began = runner, config, policy, 0.0
        self._owner = ""
        self._payoffs: PayoffByTemperature | None = None  # None: always draft
        self._payoff: Payoff | None = None
        self._is_drafting = True

    @property
    def round_plan(self) -> RoundPlan:
        return RoundPlan(draft=self._runner, shape=self._config, policy=self._policy, vocabulary=self._vocabulary)

    def adapt(self, measure: Measure) -> None:
        if self._config.adaptive:
            widths = sorted({*range(1, min(8, self._draft_width)), *widths_up_to(self._draft_width)})
            self.take_paces(measure(widths_up_to(self.verify_width)), measure_pace(self._runner, widths))

    def take_paces(self, target: Pace, draft: Pace) -> None:
        """Choose widths by these pass times from now on."""
        self._guessed.rule, self._payoffs = WidthRule(target, draft), PayoffByTemperature(target.step_s(1))

    def change_owner(self, owner: str) -> None:
        self._owner = owner

    def forget(self) -> None:
        self._draft.forget()

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._draft.begin(prompt_ids, params, noise, self._owner)
        self._payoff = None if self._payoffs is None else self._payoffs.at(params.temperature)
        self._root = prompt_ids[-1]

    def prefill(self) -> bool:
        return self._draft.prefill()

    def try_again(self) -> None:
        if self._payoff is not None:
            self._payoff.try_again()

    def propose(self) -> TokenTree:
        self._began = perf_counter()
        self._is_drafting = self._payoff is None or self._payoff.should_draft()
        if not self._is_drafting:  # early exit: while drafting does not pay, a round must cost what a plain one does
            return TokenTree(self._root)
        self._draft.tell()
        if self._guessed.rule is not None:
            self._guessed.rule.begin_round()
        self._grow()
        proposal = self._guessed.proposal()
        self._proposed = perf_counter()
        return proposal

    def _grow(self) -> None:
        while self.prefill():  # catch up on text committed in rounds without an expansion
            pass
        for _ in range(self._depth):
            if not self._draft.expand():
                break

    def accept(self, acceptance: Acceptance) -> DraftReport:
        if self._payoff is not None and self._is_drafting:
            self._payoff.see_verification(perf_counter() - self._proposed)
        self._root = acceptance.bonus_token
        self._draft.note(acceptance.tokens)
        was_hit = self._draft.tell() if self._is_drafting else False
        elapsed_s = perf_counter() - self._began
        if self._guessed.rule is not None and self._is_drafting:
            self._guessed.rule.end_round(elapsed_s)
        if self._payoff is not None:
            self._payoff.measure(len(acceptance.tokens), elapsed_s)
        return DraftReport(was_hit=was_hit)

    def note(self, acceptance: Acceptance) -> None:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        return self._draft.num_unknown(token_ids)

    def close(self) -> None:
        self.forget()


def serial_rows(config: DraftModel) -> int:
    """Rows of the draft cache that one round can fill beyond the committed text."""
    return config.draft_width * config.depth + MAX_CATCH_UP
