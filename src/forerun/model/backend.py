"""The interface of a backend that a model needs."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor
from torch.nn import functional

from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import ModelExecutor
from forerun.model.program import Program, build_program
from forerun.model.quantise import as_plain
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache, move_slots_by_index
from forerun.model.weights import Weight, WeightSource
from forerun.sampling.noise import KeyedRows
from forerun.sampling.sample import BestTokens, Choices, TopK, best_tokens, topk
from forerun.sampling.truncation import filter_scores

Linear: TypeAlias = Callable[[Tensor], Tensor]


class ModelBackend(Protocol):
    """One machine's way to run passes, to sample from their logits, and to move cache rows.

    The default methods call torch; a backend overrides those for which it has kernels.

    Args:
        name: shown to the user: native, triton, fused or reference.
        row_exact: a row's result, to the bit, depends only on its own text, and perhaps on the number of threads.
        thread_exact: a row's result does not depend on the number of threads either.
    """

    name: str
    row_exact: bool
    thread_exact: bool

    def executor(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        cache: TreeCache,
        unused: SkipSet = NOTHING,
        group: RankGroup | None = None,
    ) -> ModelExecutor:
        """The model's program without the sublayers `unused`, bound to weights and a cache.

        Args:
            group: the ranks that share the model; None: this process has the whole model.
        """
        return self.bind(spec, build_program(spec, unused, is_shared=group is not None), weights, cache, group)

    def bind(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, group: RankGroup | None
    ) -> ModelExecutor:
        """This program, bound to weights and a cache; see `executor`."""
        ...

    def sample(self, scores_TV: Tensor, noise: KeyedRows | None, *, temperature: float = 1.0) -> Choices:
        """See `sampling.sample`; every backend picks the same tokens."""
        return Choices.of(self.best_tokens(scores_TV, noise, temperature=temperature))

    def best_tokens(self, scores_TV: Tensor, noise: KeyedRows | None, *, temperature: float = 1.0) -> BestTokens:
        """See `sampling.sample`; the columns may be a part of the vocabulary, and `noise` is then that part's."""
        return best_tokens(scores_TV, noise, temperature=temperature)

    def topk(
        self,
        scores_TV: Tensor,
        noise: KeyedRows | None,
        k: int,
        *,
        temperature: float = 1.0,
        column_ids: Tensor | None = None,
    ) -> TopK:
        """See `sampling.sample`."""
        return topk(scores_TV, noise, k, temperature=temperature, column_ids=column_ids)

    def truncate(self, scores_TV: Tensor, params: SamplingParams) -> Tensor:
        """See `sampling.truncation.filter_scores`; which tokens survive in a row depends only on that row."""
        return filter_scores(scores_TV, params)

    def draft_linear(self, weight: Weight, bias_O: Tensor | None = None) -> Linear:
        """A linear layer of a draft, [..., I] to [..., O]; rounding changes no text, so the weight may be packed."""
        weight_OI = as_plain(weight)
        return lambda x: functional.linear(x, weight_OI, bias_O)

    def move_slots(self, storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
        """Copy slots `sources` to start, start + 1, ... in all layers, as if all reads came before all writes."""
        move_slots_by_index(storage_2LSKD, sources, start)

    def place_threads(self, cores: Sequence[int]) -> None:
        """Pin the backend's own threads to these cores; if empty, to all cores that this process may use."""
        return
