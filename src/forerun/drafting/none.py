"""No drafter: plain autoregressive decoding, the baseline every other drafter must reproduce."""

from collections.abc import Sequence
from typing import Final

from forerun.backends.rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.drafting.tree_policy import TreePolicy
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

ROOT_ALONE: Final = DraftModel(verify_width=1, draft_width=1, depth=1, adaptive=False)
NO_TREE: Final = TreePolicy(num_children=1, looks_up=False)


class NoneDrafter(Drafter):
    """Proposes only the root."""

    verify_width = 1

    @property
    def round_plan(self) -> RoundPlan:
        return RoundPlan(draft=None, shape=ROOT_ALONE, policy=NO_TREE)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root = prompt_ids[-1]

    def propose(self) -> TokenTree:
        return TokenTree(self._root)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._root = acceptance.bonus_token
        return DraftReport()
