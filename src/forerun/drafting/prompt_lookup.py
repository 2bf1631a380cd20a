"""Draft by looking up the tokens that followed an earlier occurrence of the last few tokens."""

from collections.abc import Sequence

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import PromptLookup
from forerun.drafting.drafter import NO_NEWS, Drafter, DraftOutcome, DraftReport
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.policies import BEST_LOOKUP, Loading, LookupPolicy
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree


class PromptLookupDrafter(Drafter):
    """Proposes one chain: the continuation of the longest suffix that occurred before."""

    def __init__(self, config: PromptLookup, policy: LookupPolicy = BEST_LOOKUP) -> None:
        self.verify_width = config.verify_width
        self._chain = LookupChain(num_tokens=config.verify_width - 1, lengths=policy.lengths)

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._chain.read_prompt(prompt_ids)
        self._root = prompt_ids[-1]

    def propose(self, budget: RowBudget) -> ProposedTree:
        tree = TokenTree(self._root)
        self._chain.hang_into(tree)
        return ProposedTree(tree=tree)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        if not outcome.is_own:
            self._chain.follow()  # measures the acceptance of the chain it would have proposed
        self._chain.accept(outcome.tokens)
        self._root = outcome.tokens[-1]
        return NO_NEWS


def load(config: PromptLookup, loading: Loading) -> PromptLookupDrafter:
    return PromptLookupDrafter(config, loading.policies.lookup)
