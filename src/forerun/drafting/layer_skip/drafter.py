"""Self-drafting: the target drafts with some of its sublayers skipped (SWIFT, arXiv 2410.06916)."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.pace import Pace
from forerun.core.sublayers import skippable
from forerun.drafting.draft_rows import MAX_CATCH_UP, DraftRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.layer_skip.gated import GatedStrategy
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.layer_skip.search import MOST_PROBE_ROWS, FixedSet, SkipSearch, Strategy
from forerun.drafting.layer_skip.set_files import NamedSet, first_set
from forerun.drafting.layer_skip.speed_model import (
    EXPANSION_S,
    ROUND_S,
    SkipCosts,
    SpeedModel,
    measure_skip_costs,
)
from forerun.drafting.layer_skip.swift import FEWEST_ITEMS, WINDOW, SwiftStrategy, load_library
from forerun.drafting.tree_policy import BEST_TREE, TreePolicy
from forerun.model.forward import ForwardInput
from forerun.model.measure import measure_pace, widths_up_to
from forerun.model.shared_cache import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.economy.rests import RestRule
from forerun.speculation.economy.widths import WidthRule
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

PROBED_ROWS: Final = (3, 9, 17)  # numbers of rows of passes with probe rows, timed in addition to the usual ones
EARLY_S: Final = 0.4  # seconds of searching while the engine opens, if no set is known
COSTS_EVERY: Final = 64  # drafting rounds between updates of overheads and of costs at the current context
NO_NEWS: Final = DraftReport()


class LayerSkipDrafter(Drafter):
    """Grows a chain or a tree after the text in the target's cache, and removes its rows before verification.

    A plain round only notes the token, so it costs nothing while drafting does not pay off.
    """

    adds_rows = True

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
        self._known = list(known)
        self.search = SkipSearch(self._first_strategy(), runner)
        self._schedule = RestRule(tree.looks_up)
        self._costs: SkipCosts | None = None
        self._began = 0.0
        self._num_rounds = 0

    @property
    def early_search_s(self) -> float:
        return self.search.early_s

    def search_early(self, seconds: float) -> None:
        self.search.allow(seconds)

    @property
    def needs_costs(self) -> bool:
        """True if pass times must be measured."""
        return self._config.adaptive or self._config.search == "gated"

    def adapt(self, measure: Measure, costs: RoundCosts | None = None) -> None:
        if self.needs_costs:
            target = measure(sorted({*PROBED_ROWS, *widths_up_to(self.verify_width + MOST_PROBE_ROWS)}))
            draft = measure_pace(self.runner, (1, 2, 4, 8)) if self.runner.has_copy else target
            self.take_costs(target, measure_skip_costs(self.runner, draft))

    def take_costs(self, target: Pace, costs: SkipCosts) -> None:
        """Use these pass times from now on to choose the skip set and the draft depth."""
        self._costs = costs
        self._pass_s = target.step_s(1)
        config = self._config
        if config.search == "gated" and skippable(self.runner.spec.num_layers):
            depth = min(config.depth, max(1, config.verify_width - 1))
            speed_model = SpeedModel(
                costs=costs, target=target, round_s=ROUND_S, expansion_s=EXPANSION_S, max_depth=depth
            )
            strategy = GatedStrategy(
                self.runner.spec.num_layers, speed_model, seed=self._policy.seed, known=self._known
            )
            early_s = 0.0 if self._known else EARLY_S
            self.search = SkipSearch(strategy, self.runner, target, self._policy.search_share, early_s=early_s)
        if config.adaptive:
            shared = RoundCosts(target, ROUND_S)
            draft = costs.draft(self.search.strategy.skipped, costs.context)
            self._guessed.rule = WidthRule(shared, draft, expansion_s=EXPANSION_S)
            self._schedule.choose_by(shared)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._draft.begin(prompt_ids, params, noise)
        self.search.begin(len(prompt_ids))
        self._schedule.begin(params.temperature)
        self._root = prompt_ids[-1]

    def propose(self) -> TokenTree:
        self._began = perf_counter()
        self._searched_s = self.search.spent_s
        schedule = self._schedule
        search = self.search
        num_tokens = self._draft.num_tokens
        schedule.next(lambda: search.strategy.may_pay(num_tokens), may_rest=not search.uses_every_round)
        if schedule.is_checked and search.wants_pass:
            self._draft.tell()
            search.run_pass(self._draft)
        return self._propose_draft() if schedule.drafts else TokenTree(self._root)

    def _propose_draft(self) -> TokenTree:
        rule = self._guessed.rule
        self._draft.tell()
        self._follow_search()
        if rule is not None:
            rule.begin_round()
        if self._schedule.grows:
            self._grow()
        return self._guessed.proposal()

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        if not (self._schedule.may_carry_rows and self.search.wants_rows):
            return inputs
        self._draft.tell()
        return self.search.extend(inputs, self._draft)

    def observe(self, logits_EV: Tensor) -> None:
        self.search.observe(logits_EV, self._draft)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token
        if self._schedule.drafts:
            return self._end_round(acceptance)
        if self._schedule.is_timed:
            self.search.take_time(self._schedule.measure_rest(perf_counter() - self._began))
        elif self.search.uses_every_round:
            self.search.take_time(self._elapsed_s())
        return NO_NEWS

    def note(self, acceptance: Acceptance) -> None:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token

    def _end_round(self, acceptance: Acceptance) -> DraftReport:
        """Learn from a round that drafted."""
        draft = self._draft
        rule = self._guessed.rule
        if draft.first_guess is not None:
            is_hit = draft.first_guess == acceptance.tokens[0]
            self.search.strategy.observe(draft.skipped, is_hit, 1, is_draft=True)
        was_hit = draft.tell()
        elapsed_s = self._elapsed_s()
        if rule is not None:
            rule.end_round(len(acceptance.path), elapsed_s)
        self._schedule.measure(len(acceptance.tokens), elapsed_s)
        self.search.take_time(elapsed_s)
        return DraftReport(was_hit=was_hit)

    def _elapsed_s(self) -> float:
        """Seconds of this round without those of the search, which must not count as drafting time."""
        return perf_counter() - self._began - (self.search.spent_s - self._searched_s)

    def _first_strategy(self) -> Strategy:
        config = self._config
        num_layers = self.runner.spec.num_layers
        if config.search == "paper" and len(skippable(num_layers)) >= FEWEST_ITEMS:
            load_library()  # otherwise its first use would import it during a request
            return SwiftStrategy(num_layers, seed=self._policy.seed)
        return FixedSet(first_set(num_layers, self._known))

    def _grow(self) -> None:
        for _ in range(self._config.depth):
            if not self._draft.expand():
                break
        self.runner.drop_rows()

    def _follow_search(self) -> None:
        """Draft with the search's set from now on, at its cost for the current context length."""
        draft = self._draft
        strategy = self.search.strategy
        skipped = strategy.skipped
        self._num_rounds += 1
        is_due = self._num_rounds % COSTS_EVERY == 0
        if skipped == draft.skipped and not is_due:
            return
        draft.skipped = skipped
        rule = self._guessed.rule
        costs = self._costs
        if rule is None or costs is None:
            return
        rule.change_draft(costs.draft(skipped, len(draft.token_ids)))
        if is_due:
            plain_round_s = self._schedule.plain_round_s
            plain_s = 0.0 if plain_round_s is None else max(0.0, plain_round_s - self._pass_s)
            strategy.take_overheads(rule.costs.beyond_s, rule.beyond_expansion_s, plain_s)


def search_of(drafter: Drafter) -> SkipSearch | None:
    """The search of a self-drafting target; None for other drafters."""
    return drafter.search if isinstance(drafter, LayerSkipDrafter) else None


def rows_behind_text(config: LayerSkip, policy: SkipPolicy = BEST_SKIPS) -> int:
    """Rows of the target's cache that a round can fill after the text."""
    num_probes = MOST_PROBE_ROWS if config.search == "gated" else 0
    window = WINDOW if config.search == "paper" else 0
    return max(policy.draft_width * config.depth, config.verify_width + num_probes, window)
