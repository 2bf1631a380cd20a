"""The CPU kernels in C++ as a backend: whole passes in one call, float32 and bfloat16."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.cpu.cores import keep_pool_on
from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.sampler import MAX_TOPK, sample_rows, topk_rows
from forerun.backends.cpu.slots import move_slots
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import Executor
from forerun.model.program import build_program
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sampling.noise import KeyedRows
from forerun.sampling.sample import Choices, TopK, topk


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBackend(Backend):
    """Runs passes, samples and moves cache rows in the C library."""

    name: str = "native"
    row_exact: bool = True
    thread_exact: bool = True

    def executor(self, spec: ModelSpec, weights: WeightSource, cache: TreeCache, unused: SkipSet = NOTHING) -> Executor:
        return NativeExecutor(spec, build_program(spec, unused), weights, cache)

    def sample(self, scores_TV: Tensor, noise: KeyedRows | None, *, temperature: float = 1.0) -> Choices:
        return Choices.of(*sample_rows(scores_TV, noise, temperature))

    def topk(self, scores_TV: Tensor, noise: KeyedRows | None, k: int, *, temperature: float = 1.0) -> TopK:
        if k > MAX_TOPK:
            return topk(scores_TV, noise, k, temperature=temperature)
        return topk_rows(scores_TV, noise, k, temperature)

    def move_slots(self, storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
        move_slots(storage_2LSKD, sources, start)

    def place_threads(self, cores: Sequence[int]) -> None:
        keep_pool_on(cores)


NATIVE = CpuBackend()
