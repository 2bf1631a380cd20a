"""No drafter: plain autoregressive decoding, the baseline every other drafter must reproduce."""

from collections.abc import Sequence

from forerun.core.config import SamplingParams
from forerun.drafting.drafter import DraftReport
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class NoneDrafter:
    """Proposes the root alone."""

    verify_width = 1

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root = prompt_ids[-1]

    def prefill(self) -> bool:
        return False

    def propose(self) -> TokenTree:
        return TokenTree(self._root)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._root = acceptance.bonus_token
        return DraftReport()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass
