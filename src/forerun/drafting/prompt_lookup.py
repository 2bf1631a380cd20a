"""Draft by looking up what followed the last few tokens earlier in the text."""

from collections.abc import Sequence

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import PromptLookup
from forerun.drafting.drafter import DraftReport
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.prompt_index import PromptIndex
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class PromptLookupDrafter:
    """Proposes one chain: the continuation of the longest suffix that occurred before."""

    def __init__(self, config: PromptLookup) -> None:
        self._config = config
        self.verify_width = config.verify_width

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._index = PromptIndex(min_match=self._config.min_match, max_match=self._config.max_match)
        self._index.extend(prompt_ids)
        self._root = prompt_ids[-1]

    def propose(self) -> TokenTree:
        tree = TokenTree(self._root)
        for token_id in self._index.continuation(self.verify_width - 1).token_ids:
            tree.add(len(tree) - 1, token_id, 0.0)
        return tree

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._index.extend(acceptance.tokens)
        self._root = acceptance.bonus_token
        return DraftReport()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass
