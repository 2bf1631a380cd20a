"""Self-drafting: the target drafts with some of its sublayers skipped (SWIFT, arXiv 2410.06916)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.pace import Pace
from forerun.core.steps import SkipReport
from forerun.core.sublayers import ATTENTION, MLP, absent_sublayers, layers_of, skippable
from forerun.drafting.draft_rows import MAX_CATCH_UP, DraftRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import (
    NO_NEWS,
    Drafter,
    DraftOutcome,
    DraftReport,
    HasCosts,
    Measure,
    RidesAlong,
    SearchesFirst,
)
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.search import MOST_PROBE_ROWS, FixedSet, SkipSearch, Strategy
from forerun.drafting.layer_skip.set_files import NamedSet, first_set
from forerun.drafting.layer_skip.speed_model import (
    EXPANSION_S,
    ROUND_S,
    SkipCosts,
    SpeedModel,
    measure_skip_costs,
)
from forerun.drafting.layer_skip.swift_strategy import SwiftStrategy, load_library
from forerun.drafting.policies import BEST_SKIPS, BEST_TREE, SkipPolicy, TreePolicy
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import measure_pace, widths_up_to
from forerun.model.self_drafting import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import DraftCosts, ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree

PROBED_ROWS: Final = (3, 9, 17)  # numbers of rows of passes with probe rows, timed in addition to the usual ones
EARLY_S: Final = 0.4  # seconds of searching while the engine opens, if no set is known
COSTS_EVERY: Final = 64  # drafting rounds between updates of overheads and of costs at the current context


class LayerSkipDrafter(Drafter, HasCosts, RidesAlong, SearchesFirst):
    """Grows a chain or a tree after the text in the target's cache, and removes its rows before verification.

    Its search goes on in plain rounds, with rows in their passes.
    """

    def __init__(
        self,
        runner: SharedCacheRunner,
        config: LayerSkip,
        *,
        known: Sequence[NamedSet] = (),
        policy: SkipPolicy = BEST_SKIPS,
        tree: TreePolicy = BEST_TREE,
    ) -> None:
        self.verify_width = config.verify_width
        self._config = config
        self.runner = runner
        self._guessed = GuessedTree(
            tree,
            verify_width=config.verify_width,
            draft_width=policy.draft_width,
            calibrates=config.adaptive,
        )
        rows = DraftRows(runner, policy.draft_width * config.depth + MAX_CATCH_UP)
        self._draft = DraftTree(self._guessed, rows, target_vocab_size=runner.spec.vocab_size)
        self._policy = policy
        self._absent = absent_sublayers(runner.spec)
        self._known = [replace(named, skipped=named.skipped - self._absent) for named in known]
        self.search = SkipSearch(self._first_strategy(), runner)
        self._looks_up = tree.looks_up
        self.needs_costs = config.search == "gated"
        self._costs: SkipCosts | None = None
        self._num_rounds = 0
        self._num_hits = 0  # of the drafts with the set in use
        self._num_drafts = 0

    @property
    def skip_report(self) -> SkipReport:
        strategy = self.search.strategy
        return SkipReport(
            is_searching=strategy.is_searching,
            attention=layers_of(strategy.skipped, ATTENTION),
            mlp=layers_of(strategy.skipped, MLP),
            matchness=strategy.matchness,
            hit_rate=self._num_hits / self._num_drafts if self._num_drafts else None,
            num_scored=strategy.num_scored,
            search_s=self.spent_s,
        )

    @property
    def early_search_s(self) -> float:
        return self.search.early_s

    def search_early(self, seconds: float) -> None:
        self.search.allow(seconds)

    def measure_costs(self, measure: Measure) -> DraftCosts:
        target = measure(sorted({*PROBED_ROWS, *widths_up_to(self.verify_width + MOST_PROBE_ROWS)}))
        draft = measure_pace(self.runner, (1, 2, 4, 8)) if self.runner.has_copy else target
        return self.take_costs(target, measure_skip_costs(self.runner, draft))

    def take_costs(self, target: Pace, costs: SkipCosts) -> DraftCosts:
        """Use these pass times from now on to choose the skip set and the draft depth; what drafts cost with it."""
        self._costs = costs
        config = self._config
        if config.search == "gated" and skippable(self.runner.spec.num_layers, self._absent):
            depth = min(config.depth, max(1, config.verify_width - 1))
            speed_model = SpeedModel(
                costs=costs, target=target, round_s=ROUND_S, expansion_s=EXPANSION_S, max_depth=depth
            )
            strategy = GatedStrategy(
                self.runner.spec.num_layers, speed_model, seed=self._policy.seed, known=self._known
            )
            early_s = 0.0 if self._known else EARLY_S
            self.search = SkipSearch(strategy, self.runner, target, self._policy.search_share, early_s=early_s)
        expansion = costs.draft(self.search.strategy.skipped, costs.context)
        return DraftCosts(expansion=expansion, expansion_overhead_s=EXPANSION_S, round_overhead_s=ROUND_S)

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._draft.reset(prompt_ids, params, noise)
        self.search.start_request(len(prompt_ids))
        self._root = prompt_ids[-1]

    @property
    def spent_s(self) -> float:
        return self.search.spent_s

    @property
    def is_due(self) -> bool:
        return self.search.wants_rows or self.search.wants_pass

    @property
    def wants_rows(self) -> bool:
        return self.search.wants_rows

    def prepare(self) -> None:
        if self.search.wants_pass:
            self._draft.apply_told()
            self.search.run_pass(self._draft)

    def propose(self, budget: RowBudget) -> ProposedTree:
        self._draft.apply_told()
        grows = self.search.strategy.may_pay(self._draft.num_tokens)
        if not grows and not self._looks_up:
            return ProposedTree(tree=TokenTree(self._root))
        self._follow_search(budget)
        if grows:
            self._grow(budget)
        return self._guessed.proposal()

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        self._draft.apply_told()
        return self.search.extend(inputs, self._draft)

    def told_logits(self, logits_EV: Tensor) -> None:
        self.search.told_logits(logits_EV, self._draft)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._draft.told(outcome.tokens)
        self._root = outcome.tokens[-1]
        self.search.take_time(outcome.seconds)
        if not outcome.is_own:
            return NO_NEWS
        draft = self._draft
        if draft.first_guess is not None:
            is_hit = draft.first_guess == outcome.tokens[0]
            self.search.strategy.told(draft.skipped, is_hit, 1, is_draft=True)
            self._num_hits += is_hit
            self._num_drafts += 1
        return DraftReport(was_hit=draft.apply_told())

    def _first_strategy(self) -> Strategy:
        config = self._config
        num_layers = self.runner.spec.num_layers
        if config.search == "paper" and config.optimise and skippable(num_layers, self._absent):
            if config.bayes:
                load_library()  # otherwise its first use would import it during a request
            return SwiftStrategy(num_layers, config, seed=self._policy.seed, absent=self._absent)
        return FixedSet(first_set(num_layers, self._known, self._absent))

    def _grow(self, budget: RowBudget) -> None:
        for _ in range(self._config.depth):
            if not self._draft.expand(budget):
                break
        self.runner.drop_rows()

    def _follow_search(self, budget: RowBudget) -> None:
        """Draft with the search's set from now on, at its cost for the current context length."""
        draft = self._draft
        strategy = self.search.strategy
        skipped = strategy.skipped
        self._num_rounds += 1
        is_due = self._num_rounds % COSTS_EVERY == 0
        if skipped == draft.skipped and not is_due:
            return
        if skipped != draft.skipped:
            self._num_hits = 0
            self._num_drafts = 0
        draft.skipped = skipped
        if self._costs is None or budget.costs is None:
            return
        budget.change_expansion(self._costs.draft(skipped, len(draft.token_ids)))
        if is_due:
            costs = budget.costs
            plain_overhead_s = max(0.0, costs.plain_s - costs.pass_s[0])
            strategy.take_overheads(costs.beyond_s, budget.expansion_overhead_s, plain_overhead_s)


def rows_behind_text(config: LayerSkip, policy: SkipPolicy = BEST_SKIPS) -> int:
    """Rows of the target's cache that a round can fill after the text."""
    num_probes = MOST_PROBE_ROWS if config.search == "gated" else 0
    window = config.window if config.search == "paper" else 0
    return max(policy.draft_width * config.depth, config.verify_width + num_probes, window)
