"""A backend whose model is shared by several ranks, of which this process is one."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from forerun.backends.backend import Backend
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import Executor
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sampling.noise import KeyedRows
from forerun.sampling.sample import Choices, TopK
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.plan import ShardPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBackend(Backend):
    """Samples and moves cache rows as `backend` does, whose kernels run this rank's part of a pass.

    Args:
        spec: of the whole model.
    """

    backend: Backend
    spec: ModelSpec
    plan: ShardPlan
    group: RankGroup
    name: str
    row_exact: bool
    thread_exact: bool

    @classmethod
    def of(cls, backend: Backend, spec: ModelSpec, plan: ShardPlan, group: RankGroup) -> "SharedBackend":
        """This rank's part on a backend."""
        return cls(
            backend=backend,
            spec=spec,
            plan=plan,
            group=group,
            name=backend.name,
            row_exact=backend.row_exact,
            thread_exact=backend.thread_exact,
        )

    def executor(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        cache: TreeCache,
        unused: SkipSet = NOTHING,
        group: RankGroup | None = None,
    ) -> Executor:
        """This rank's part of the program; `spec` is the part's, `weights` are the whole model's."""
        return SharedExecutor(
            self.spec, weights, cache, unused, backend=self.backend, plan=self.plan, group=group or self.group
        )

    def sample(self, scores_TV: Tensor, noise: KeyedRows | None, *, temperature: float = 1.0) -> Choices:
        return self.backend.sample(scores_TV, noise, temperature=temperature)

    def topk(
        self,
        scores_TV: Tensor,
        noise: KeyedRows | None,
        k: int,
        *,
        temperature: float = 1.0,
        column_ids: Tensor | None = None,
    ) -> TopK:
        return self.backend.topk(scores_TV, noise, k, temperature=temperature, column_ids=column_ids)

    def move_slots(self, storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
        self.backend.move_slots(storage_2LSKD, sources, start)

    def place_threads(self, cores: Sequence[int]) -> None:
        self.backend.place_threads(cores)
