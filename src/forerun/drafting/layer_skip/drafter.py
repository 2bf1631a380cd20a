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
from forerun.drafting.layer_skip.in_pass_search import InPassSearch
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.layer_skip.set_search import SetSearch
from forerun.drafting.layer_skip.settings import TUNED
from forerun.drafting.layer_skip.skip_costs import SkipCosts, measure_skip_costs
from forerun.drafting.layer_skip.skip_search import FixedSet, SkipSearch, first_set
from forerun.drafting.layer_skip.speed_model import SpeedModel
from forerun.drafting.layer_skip.swift_candidates import FEWEST_ITEMS, WINDOW, SwiftCandidates, load_library
from forerun.drafting.layer_skip.swift_search import SwiftSearch
from forerun.drafting.layer_skip.when_to_draft import TIMED, Drafting, DraftingSchedule, Resting
from forerun.drafting.tree_policy import BEST_TREE, TreePolicy
from forerun.model.inputs import ForwardInput
from forerun.model.measure import measure_pace, widths_up_to
from forerun.model.shared_cache import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.economy.alone import Alone
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.economy.widths import WidthRule
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

PROBED_ROWS: Final = (3, 9, 17)  # numbers of rows of passes with probe rows, timed in addition to the usual ones
NO_NEWS: Final = DraftReport()


class LayerSkipDrafter(Drafter):
    """Grows a chain or a tree after the text in the target's cache, and removes its rows before verification.

    A plain round only notes the token, so it costs nothing while drafting does not pay off.
    """

    adds_rows = True

    def __init__(
        self, runner: SharedCacheRunner, config: LayerSkip, *, known: Sequence[NamedSet] = (),
        policy: SkipPolicy = BEST_SKIPS, tree: TreePolicy = BEST_TREE,
    ) -> None:  # fmt: skip
        self.verify_width, self._config, self.runner = config.verify_width, config, runner
        self._guessed = GuessedTree(
            tree,
            verify_width=config.verify_width,
            draft_width=policy.draft_width,
            horizon=config.verify_width,
            calibrates=config.adaptive,
        )
        rows = DraftRows(runner, policy.draft_width * config.depth + MAX_CATCH_UP)
        self._draft = DraftTree(self._guessed, rows, target_vocab_size=runner.spec.vocab_size)
        self._policy, self._known = policy, list(known)
        self._search: SkipSearch = self._first_search()
        self._schedule = DraftingSchedule(tree.looks_up)
        self._costs: SkipCosts | None = None
        self._began, self._num_rounds = 0.0, 0

    @property
    def search(self) -> SkipSearch:
        """The search, which also gives the set in use."""
        return self._search

    @property
    def early_search_s(self) -> float:
        return self._search.early_s

    def search_early(self, seconds: float) -> None:
        self._search.allow(seconds)

    @property
    def needs_costs(self) -> bool:
        """True if pass times must be measured."""
        return self._config.adaptive or self._config.search == "gated"

    def adapt(self, measure: Measure) -> None:
        if self.needs_costs:
            target = measure(sorted({*PROBED_ROWS, *widths_up_to(self.verify_width + TUNED.most_probe_rows)}))
            draft = measure_pace(self.runner, (1, 2, 4, 8)) if self.runner.has_copy else target
            self.take_costs(target, measure_skip_costs(self.runner, draft))

    def take_costs(self, target: Pace, costs: SkipCosts) -> None:
        """Use these pass times from now on to choose the skip set and the draft depth."""
        self._costs, self._pass_s, config = costs, target.step_s(1), self._config
        usual = {"round_s": TUNED.round_s, "expansion_s": TUNED.expansion_s}
        if config.search == "gated" and skippable(self.runner.spec.num_layers):
            depth = min(config.depth, max(1, config.verify_width - 1))
            speed_model = SpeedModel(costs=costs, target=target, **usual, max_depth=depth)
            search = SetSearch(self.runner.spec.num_layers, speed_model, seed=self._policy.seed, known=self._known)
            early_s = 0.0 if self._known else TUNED.early_s
            self._search = InPassSearch(search, self.runner, target, self._policy.search_share, early_s=early_s)
        if config.adaptive:
            shared, draft = RoundCosts(target, TUNED.round_s), costs.draft(self._search.skipped, costs.context)
            self._guessed.rule = WidthRule(shared, draft, expansion_s=TUNED.expansion_s)
            self._schedule.choice = Alone(shared)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._draft.begin(prompt_ids, params, noise)
        self._search.begin(len(prompt_ids))
        self._schedule.begin(params.temperature)
        self._root = prompt_ids[-1]

    def propose(self) -> TokenTree:
        self._began, self._searched_s = perf_counter(), self._search.spent_s
        kind = self._schedule.next(self._search, self._draft.num_tokens)
        if isinstance(kind, Resting) and kind.rounds_left < TUNED.rest_rounds:
            return TokenTree(self._root)
        if self._search.wants_pass:
            self._draft.tell()
            self._search.run_pass(self._draft)
        return self._propose_draft(kind.grows) if isinstance(kind, Drafting) else TokenTree(self._root)

    def _propose_draft(self, grows: bool) -> TokenTree:
        rule = self._guessed.rule
        self._draft.tell()
        self._follow_search()
        if rule is not None:
            rule.begin_round()
        if grows:
            self._grow()
        return self._guessed.proposal()

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        if not (self._schedule.may_carry_rows and self._search.wants_rows):
            return inputs
        self._draft.tell()
        return self._search.extend(inputs, self._draft)

    def observe(self, logits_EV: Tensor) -> None:
        self._search.observe(logits_EV, self._draft)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token
        match self._schedule.kind:
            case Drafting():
                return self._end_round(acceptance)
            case Resting(rounds_left) if rounds_left == TIMED:
                self._schedule.take_time(perf_counter() - self._began)
            case _ if self._search.uses_every_round:
                self._search.take_time(self._elapsed_s())
        return NO_NEWS

    def note(self, acceptance: Acceptance) -> None:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token

    def _end_round(self, acceptance: Acceptance) -> DraftReport:
        """Learn from a round that drafted."""
        draft, rule, choice = self._draft, self._guessed.rule, self._schedule.choice
        if draft.first_guess is not None:
            self._search.take_guess(draft.skipped, draft.first_guess == acceptance.tokens[0])
        was_hit = draft.tell()
        elapsed_s = self._elapsed_s()
        if rule is not None:
            rule.end_round(len(acceptance.path), elapsed_s)
        if choice is not None:
            choice.measure(len(acceptance.tokens), elapsed_s)
        self._search.take_time(elapsed_s)
        return DraftReport(was_hit=was_hit)

    def _elapsed_s(self) -> float:
        """Seconds of this round without those of the search, which must not count as drafting time."""
        return perf_counter() - self._began - (self._search.spent_s - self._searched_s)

    def _first_search(self) -> SkipSearch:
        config, num_layers = self._config, self.runner.spec.num_layers
        if config.search == "paper" and len(skippable(num_layers)) >= FEWEST_ITEMS:
            load_library()  # otherwise its first use would import it during a request
            return SwiftSearch(SwiftCandidates(num_layers, seed=self._policy.seed), self.runner)
        return FixedSet(first_set(num_layers, self._known))

    def _grow(self) -> None:
        for _ in range(self._config.depth):
            if not self._draft.expand():
                break
        self.runner.drop_rows()

    def _follow_search(self) -> None:
        """Draft with the search's set from now on, at its cost for the current context length."""
        draft, skipped = self._draft, self._search.skipped
        self._num_rounds += 1
        is_due = self._num_rounds % TUNED.costs_every == 0
        if skipped == draft.skipped and not is_due:
            return
        draft.skipped, rule, costs = skipped, self._guessed.rule, self._costs
        if rule is None or costs is None:
            return
        rule.change_draft(costs.draft(skipped, len(draft.token_ids)))
        if is_due:
            plain_round_s = self._schedule.plain_round_s
            plain_s = 0.0 if plain_round_s is None else max(0.0, plain_round_s - self._pass_s)
            self._search.take_overheads(rule.round_overhead_s, rule.expansion_overhead_s, plain_s)


def search_of(drafter: Drafter) -> SkipSearch | None:
    """The search of a self-drafting target; None for other drafters."""
    return drafter.search if isinstance(drafter, LayerSkipDrafter) else None


def rows_behind_text(config: LayerSkip, policy: SkipPolicy = BEST_SKIPS) -> int:
    """Rows of the target's cache that a round can fill after the text."""
    num_probes = TUNED.most_probe_rows if config.search == "gated" else 0
    window = WINDOW if config.search == "paper" else 0
    return max(policy.draft_width * config.depth, config.verify_width + num_probes, window)
