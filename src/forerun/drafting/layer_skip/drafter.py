"""The target drafts for itself with some of its sublayers left out (SWIFT, arXiv 2410.06916)."""

from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.pace import Pace
from forerun.core.sublayers import skippable
from forerun.drafting.draft_tree import MAX_CATCH_UP, DraftTree
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.drafting.layer_skip.gated import MOST_RIDERS, GatedSkips
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.paper import WINDOW, PaperSkips
from forerun.drafting.layer_skip.paper_search import FEWEST_ITEMS, PaperSearch, load_library
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.layer_skip.search import NoSearch, SkipSearch, first_set
from forerun.drafting.layer_skip.set_search import SetSearch
from forerun.drafting.layer_skip.skip_costs import SkipCosts, measure_skip_costs
from forerun.drafting.layer_skip.speed_model import SpeedModel
from forerun.drafting.tree_policy import BEST_TREE, TreePolicy
from forerun.model.inputs import ForwardInput
from forerun.model.measure import measure_pace, widths_up_to
from forerun.model.shared_cache import LentRunner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.payoff import Payoff
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance
from forerun.speculation.widths import WidthRule

STRETCH: Final = 16  # rounds without a draft between two questions whether to draft
RECKONED_EVERY: Final = 64  # drafting rounds after which costs are reckoned anew: overheads, and the context has grown
USUAL_ROUND_S: Final = 0.3e-3  # what a drafting round takes beyond its passes on a usual CPU, until that is measured
USUAL_EXPANSION_S: Final = 0.06e-3
EARLY_SEARCH_S: Final = 0.4  # of searching while the engine opens


NO_NEWS: Final = DraftReport()


class LayerSkipDrafter(Drafter):
    """Grows a chain or a tree behind the text in the target's own cache, and takes its rows out before verification.

    In a plain round nothing is done but noting the token, so that where drafting does not pay it costs nothing.
    """

    def __init__(
        self, runner: LentRunner, config: LayerSkip, *, known: Sequence[NamedSet] = (),
        policy: SkipPolicy = BEST_SKIPS, tree: TreePolicy = BEST_TREE,
    ) -> None:  # fmt: skip
        self.verify_width, self._config, self.runner = config.verify_width, config, runner
        self._draft = DraftTree(
            runner,
            tree,
            verify_width=config.verify_width,
            draft_width=policy.draft_width,
            target_vocab_size=runner.spec.vocab_size,
            horizon=config.verify_width,
            max_rows=policy.draft_width * config.depth + MAX_CATCH_UP,
            keeps_subtree=False,
            calibrates=config.adaptive,
        )
        self._policy, self._looks_up, self._known = policy, tree.looks_up, list(known)
        self._search: SkipSearch = self._first_search()
        self._payoff: Payoff | None = None  # None: always draft
        self._costs: SkipCosts | None = None
        self._began, self._num_rounds = 0.0, 0
        self._num_left = 0  # plain rounds until it is asked again whether to draft
        self._timed_s: float | None = None  # one of them
        self._plain_round_s: float | None = None  # a plain round at its quickest of late: others only add time

    @property
    def search(self) -> SkipSearch:
        """What is skipped, and how that is found."""
        return self._search

    @property
    def early_search_s(self) -> float:
        is_new = isinstance(self._search, GatedSkips) and not self._known
        return EARLY_SEARCH_S if is_new else 0.0

    def search_early(self, seconds: float) -> None:
        if isinstance(self._search, GatedSkips):
            self._search.hurry(seconds)

    @property
    def needs_costs(self) -> bool:
        """True where it has to be known what passes cost."""
        return self._config.adaptive or self._config.search == "gated"

    def adapt(self, measure: Measure) -> None:
        if self.needs_costs:
            target = measure(sorted({3, 9, 17, *widths_up_to(self.verify_width + MOST_RIDERS)}))
            draft = measure_pace(self.runner, (1, 2, 4, 8)) if self.runner.has_copy else target
            self.take_costs(target, measure_skip_costs(self.runner, draft))

    def take_costs(self, target: Pace, costs: SkipCosts) -> None:
        """Choose what to skip and how far to draft by what passes cost from now on."""
        self._costs, self._pass_s, config = costs, target.step_s(1), self._config
        if config.search == "gated" and skippable(self.runner.spec.num_layers):
            speed_model = SpeedModel(
                costs=costs, target=target, round_s=USUAL_ROUND_S, expansion_s=USUAL_EXPANSION_S,
                max_depth=min(config.depth, max(1, config.verify_width - 1)),
            )  # fmt: skip
            search = SetSearch(self.runner.spec.num_layers, speed_model, seed=self._policy.seed, known=self._known)
            self._search = GatedSkips(search, self.runner, target, self._policy.search_share)
        if config.adaptive:
            self._draft.rule = WidthRule(
                target, costs.draft(self._search.skipped, costs.context), round_s=USUAL_ROUND_S,
                expansion_s=USUAL_EXPANSION_S,
            )  # fmt: skip
            self._payoff = Payoff(target.step_s(1))

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._draft.begin(prompt_ids, params, noise)
        self._search.begin(len(prompt_ids))
        self._root, self._num_left = prompt_ids[-1], 0

    def propose(self) -> TokenTree:
        if self._num_left:
            self._num_left -= 1
            if self._num_left == 1:
                self._began = perf_counter()
            return TokenTree(self._root)
        self._began, self._searched_s = perf_counter(), self._search.spent_s
        self._is_drafting = self._is_to_draft()
        if not self._is_drafting:
            self._num_left = 0 if self._search.is_eager else STRETCH - 1
            return TokenTree(self._root)
        draft, rule, width = self._draft, self._draft.rule, self.verify_width
        self._look()
        self._draft.tell()
        self._follow_search()
        if rule is not None:
            rule.begin_round()
        if self._is_worth_it:
            self._grow()
        if rule is not None:
            width = rule.num_rows(draft.chances(), width)
        return draft.tree.select(draft.tree.best(width))

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        if self._num_left or not self._search.wants_to_ride:
            return inputs
        self._draft.tell()
        return self._search.board(inputs, self._draft)

    def observe(self, logits_EV: Tensor) -> None:
        self._search.arrive(logits_EV, self._draft)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._draft.note(acceptance.tokens)
        self._root = acceptance.bonus_token
        if not self._is_drafting:
            if self._num_left == 1:
                self._timed_s = perf_counter() - self._began
            elif self._search.is_eager:
                self._search.pass_by(self._elapsed_s())
            return NO_NEWS
        if self._draft.first_guess is not None:
            self._search.learn(self._draft.skipped, self._draft.first_guess == acceptance.tokens[0])
        was_hit, rule = self._draft.tell(), self._draft.rule
        elapsed_s = self._elapsed_s()
        if rule is not None:
            rule.end_round(elapsed_s)
        if self._payoff is not None:
            self._payoff.measure(len(acceptance.tokens), elapsed_s)
        self._search.pass_by(elapsed_s)
        return DraftReport(was_hit=was_hit)

    def _elapsed_s(self) -> float:
        """Seconds of this round without what searching took of them: no draft is blamed for that."""
        return perf_counter() - self._began - (self._search.spent_s - self._searched_s)

    def _first_search(self) -> SkipSearch:
        config, num_layers = self._config, self.runner.spec.num_layers
        if config.search == "paper" and len(skippable(num_layers)) >= FEWEST_ITEMS:
            load_library()  # the first that is needed is needed in the middle of an answer
            return PaperSkips(PaperSearch(num_layers, seed=self._policy.seed), self.runner)
        return NoSearch(first_set(num_layers, self._known))

    def _is_to_draft(self) -> bool:
        """Whether anything is to be proposed in this round, and if not, in those of a whole stretch.

        A plain round of a small model takes a third of a millisecond, of which every question would cost a hundredth.
        One round of a stretch is timed and stands for all.
        """
        if self._timed_s is not None:
            if self._payoff is not None and not self._payoff.should_draft():
                self._payoff.measure(STRETCH, STRETCH * self._timed_s, STRETCH)
            self._search.pass_by(STRETCH * self._timed_s)
            self._plain_round_s = min(self._timed_s, 1.1 * (self._plain_round_s or inf))
            self._timed_s = None
        if self._payoff is not None and not self._payoff.should_draft():
            self._look()
            return False
        self._is_worth_it = self._search.is_worth_it(self._draft.num_tokens)
        is_to_draft = self._is_worth_it or self._looks_up
        if not is_to_draft:
            self._look()
        return is_to_draft

    def _look(self) -> None:
        """Let the search have a pass of its own, if it wants one."""
        if self._search.wants_to_look:
            self._draft.tell()
            self._search.look(self._draft)

    def _grow(self) -> None:
        for _ in range(self._config.depth):
            if not self._draft.expand():
                break
        self.runner.give_back()

    def _follow_search(self) -> None:
        """Skip what the search says from here on, and reckon with what that costs where the text stands now."""
        draft, skipped = self._draft, self._search.skipped
        self._num_rounds += 1
        is_due = self._num_rounds % RECKONED_EVERY == 0
        if skipped == draft.skipped and not is_due:
            return
        draft.skipped, rule, costs = skipped, draft.rule, self._costs
        if rule is None or costs is None:
            return
        rule.change_draft(costs.draft(skipped, len(draft.token_ids)))
        if is_due:
            plain_s = 0.0 if self._plain_round_s is None else max(0.0, self._plain_round_s - self._pass_s)
            self._search.take_overheads(rule.round_overhead_s, rule.expansion_overhead_s, plain_s)


def search_of(drafter: Drafter) -> SkipSearch | None:
    """How a target that drafts for itself finds what to skip; None where another one drafts."""
    return drafter.search if isinstance(drafter, LayerSkipDrafter) else None


def rows_behind_text(config: LayerSkip, policy: SkipPolicy = BEST_SKIPS) -> int:
    """Rows of the target's cache that a round can fill behind the text."""
    riders = MOST_RIDERS if config.search == "gated" else 0
    window = WINDOW if config.search == "paper" else riders
    return max(policy.draft_width * config.depth, config.verify_width + riders, window)
