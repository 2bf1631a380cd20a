"""The target of one request: it runs trees, chooses a token after each node, and keeps what was accepted."""

from collections.abc import Sequence

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.drafting.drafter import Drafter
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.sampling.distribution import LogitShaper
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import Choices
from forerun.speculation.ancestry import ancestry_matrix
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class Verifier:
    """Runs trees and chooses a token after each node.

    The token after a prefix is a function of the prefix, the parameters and the seed alone; see `sampling.sample`.
    """

    def __init__(
        self, runner: Runner, params: SamplingParams, prompt_ids: Sequence[int], noise: KeyedNoise | None
    ) -> None:
        self._runner, self._noise = runner, noise
        self._shaper = LogitShaper(params, runner.spec.vocab_size, prompt_ids, device=runner.device)
        self.vocab_size, self.root = runner.spec.vocab_size, prompt_ids[-1]

    @property
    def token_ids(self) -> list[int]:
        """The text so far, the root last."""
        return [*self._runner.cached_ids, self.root]

    def choose(self, tree: TokenTree, drafter: Drafter | None = None) -> Choices:
        """One forward over the tree, one row per node, and over what the drafter adds; the choice after each node."""
        cache = self._runner.cache
        prefix_len = cache.committed_len
        positions = [prefix_len + depth for depth in tree.depths]
        inputs = ForwardInput(
            token_ids=tree.token_ids,
            positions=positions,
            first_slot=cache.end,
            prefix_len=prefix_len,
            ancestry=ancestry_matrix(tree.parents) if len(tree) > 1 else None,
            num_logit_rows=len(tree),
        )
        logits = self._run(inputs, drafter)
        paths = [tree.path_tokens(node) for node in range(len(tree))] if self._shaper.needs_paths else None
        scores = self._shaper.shape(logits, paths)
        noise = self._noise.at([place + 1 for place in positions]) if self._noise else None
        try:
            return self._runner.backend.sample(scores, noise, temperature=self._shaper.temperature_left)
        except NumericalError:
            if fault := self._shaper.fault_of_settings(logits):
                raise NumericalError(fault) from None
            raise

    def _run(self, inputs: ForwardInput, drafter: Drafter | None) -> Tensor:
        """The logits of these rows; those of rows that the drafter adds are for it alone."""
        extended = inputs if drafter is None else drafter.extend(inputs)
        logits, num_rows = self._runner.forward(extended), len(inputs.token_ids)
        if drafter is None or extended is inputs:
            return logits
        drafter.observe(logits[num_rows:])
        return logits[:num_rows]

    def choose_safely(self, tree: TokenTree, drafter: Drafter | None = None) -> tuple[TokenTree, Choices]:
        """The tree that was verified and its choices.

        A drafted node, or a row that the drafter adds, must not end the request by making the target overflow: the root
        is then run alone, as plain decoding would have done. If it fails alone, the cache may hold what caused it and
        is emptied.
        """
        try:
            return tree, self.choose(tree, drafter)
        except NumericalError:
            self._runner.drop_rows()
        alone = TokenTree(tree.token_ids[0])
        try:
            return alone, self.choose(alone)
        except NumericalError:
            self._runner.forget()
            raise

    def commit(self, tree: TokenTree, acceptance: Acceptance) -> None:
        """Keep the rows of the root and of the accepted path."""
        self._runner.commit([0, *acceptance.path], (tree.token_ids[0], *acceptance.tokens[:-1]))
        self._shaper.commit(acceptance.tokens)
        self.root = acceptance.bonus_token
