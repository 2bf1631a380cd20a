"""One rank's part of a pass of a model that several ranks share.

Legend: T rows, V vocabulary, N columns of one rank.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput, ForwardOutput, ModelExecutor, Observer, TokenChoice
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import BestTokens, widened
from forerun.sharding.plan import ShardPlan


class SharedExecutor(ModelExecutor):
    """Runs this rank's part of a pass. Every rank gets the logits of the whole model; if only a token choice is needed,
    each rank finds the best tokens of its part, and these are joined.

    Args:
        spec: of the whole model.
        weights: of this rank.
        cache: of this rank's key and value heads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        cache: TreeCache,
        unused: SkipSet = NOTHING,
        *,
        backend: ModelBackend,
        plan: ShardPlan,
        group: RankGroup,
    ) -> None:
        self._vocab_size = spec.vocab_size
        self._vocab = plan.vocab
        self._cache = cache
        self._group = group
        self._backend = backend
        self._device = cache.device
        self._noise = KeyedNoise(0, spec.vocab_size, device=self._device)
        self._part = backend.executor(plan.local(spec), weights, cache, unused, group)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        with self._cache.tell(inputs):
            try:
                return self._run(inputs, observe)
            except BaseException:
                self._group.lose()  # the others are waiting in a pass that this rank does not finish
                raise

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._part.embed(token_ids)  # each rank has the whole embedding

    def output(self) -> None:
        """Each rank has a part."""
        return None

    def _run(self, inputs: ForwardInput, observe: Observer | None) -> ForwardOutput:
        output = self._part.run(inputs, observe)
        logits = output.logits.new_empty(0, self._vocab_size)
        best = None
        if inputs.num_logit_rows and inputs.choice is not None:
            positions = [position + 1 for position in inputs.positions[-inputs.num_logit_rows :]]
            best = self._join(self._best_of(output.logits, inputs.choice, positions))
        elif inputs.num_logit_rows:
            logits = self._group.join_columns(output.logits)[:, : self._vocab_size]
        return ForwardOutput(logits=logits, features=output.features, best=best)

    def _best_of(self, logits_TN: Tensor, choice: TokenChoice, positions: Sequence[int]) -> BestTokens:
        """The best tokens among this rank's columns."""
        first = self._vocab.start
        num_real = self._vocab.num_real
        if num_real == 0:
            return BestTokens.nothing(len(logits_TN))
        scores_TN = widened(logits_TN[:, :num_real])
        rows = None if choice.seed is None else self._noise_of(choice.seed).at(positions, first_token=first)
        own = self._backend.best_tokens(scores_TN, rows, temperature=choice.temperature)
        return replace(own, token_ids=[first + token for token in own.token_ids])

    def _noise_of(self, seed: int) -> KeyedNoise:
        if self._noise.seed != seed:  # of another request
            self._noise = KeyedNoise(seed, self._vocab_size, device=self._device)
        return self._noise

    def _join(self, own: BestTokens) -> BestTokens:
        """The best tokens of all ranks."""
        part_T3 = torch.tensor([own.token_ids, own.totals, own.next_totals], dtype=torch.float64).T
        parts = self._group.join_columns(part_T3.to(self._device)).T.tolist()
        return BestTokens.joined(
            [
                BestTokens(token_ids=[int(token) for token in tokens], totals=totals, next_totals=next_totals)
                for tokens, totals, next_totals in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
            ]
        )
