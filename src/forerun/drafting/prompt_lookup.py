"""Draft by looking up the tokens that followed an earlier occurrence of the last few tokens."""

from collections.abc import Sequence

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import PromptLookup
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.policies import BEST_LOOKUP, LookupPolicy
from forerun.model.measure import widths_up_to
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.economy.widths import WidthRule, rows_to_verify
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class PromptLookupDrafter(Drafter):
    """Proposes one chain: the continuation of the longest suffix that occurred before, as long as it pays off."""

    def __init__(self, config: PromptLookup, policy: LookupPolicy = BEST_LOOKUP) -> None:
        self.verify_width = config.verify_width
        self._is_adaptive = config.adaptive and config.verify_width > 1
        self._chain = LookupChain(num_tokens=config.verify_width - 1, lengths=policy.lengths)
        self._rule: WidthRule | None = None  # None: always the whole chain

    def adapt(self, measure: Measure, costs: RoundCosts | None = None) -> None:
        if self._is_adaptive:
            self._rule = WidthRule(costs or measure(widths_up_to(self.verify_width)), None)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._chain.begin(prompt_ids)
        self._root = prompt_ids[-1]

    def propose(self) -> TokenTree:
        tree = TokenTree(self._root)
        self._chain.hang_into(tree)
        self._has_chain = len(tree) > 1
        if self._rule is None or not self._has_chain:
            return tree
        return rows_to_verify(tree, self.verify_width, self._rule)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._chain.accept(acceptance.tokens)
        self._root = acceptance.bonus_token
        if self._rule is not None and self._has_chain:
            self._rule.end_round(len(acceptance.path))
        return DraftReport()

    def note(self, acceptance: Acceptance) -> None:
        self._chain.follow()  # measures the acceptance of the chain it would have proposed
        self._chain.accept(acceptance.tokens)
        self._root = acceptance.bonus_token
