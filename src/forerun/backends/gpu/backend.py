"""A GPU as a backend: five Triton kernels a layer, recorded as CUDA graphs. Importing this needs Triton."""

from dataclasses import dataclass

from forerun.backends.backend import Backend
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import Executor
from forerun.model.program import build_program
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBackend(Backend):
    """Runs passes with Triton's kernels. What is sampled between passes is sampled with torch's calls."""

    name: str = "triton"
    row_exact: bool = True
    thread_exact: bool = True

    def executor(self, spec: ModelSpec, weights: WeightSource, cache: TreeCache, unused: SkipSet = NOTHING) -> Executor:
        return DeviceExecutor(spec, build_program(spec, unused), weights, cache)


TRITON = GpuBackend()
