"""The GPU backend: five Triton kernels per layer, recorded as CUDA graphs. Importing this needs Triton."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.device_rounds import RoundPipeline, RoundPlan
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.backends.gpu.rounds import DeviceRounds, can_play
from forerun.backends.gpu.rounds_in_flight import Pipeline
from forerun.backends.gpu.sampling.truncation import truncated
from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import ModelExecutor
from forerun.model.program import Program
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBackend(Backend):
    """Runs passes with Triton kernels. The host samples with torch calls, but uses the device's filters, so that both
    sample from the same tokens."""

    name: str = "triton"
    row_exact: bool = True
    thread_exact: bool = True

    def bind(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, group: RankGroup | None
    ) -> ModelExecutor:
        assert group is None or isinstance(group, PeerGroup), "these kernels add partials in each other's memory only"
        return DeviceExecutor(spec, program, weights, cache, group)

    def truncate(self, scores_TV: Tensor, params: SamplingParams) -> Tensor:
        return truncated(scores_TV, params)

    def plays_rounds(self, target: Runner, plan: RoundPlan) -> bool:
        return can_play(target, plan)

    def rounds(self, target: Runner, plan: RoundPlan) -> RoundPipeline:
        return Pipeline(DeviceRounds(target, plan))

    def group(
        self, store: Any, rank: int, num_ranks: int, *, device: str, address: str, blame: Callable[[], str | None]
    ) -> RankGroup:
        return PeerGroup(store, rank, num_ranks, device=device, blame=blame)


TRITON = GpuBackend()
