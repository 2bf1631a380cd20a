"""The torch backend: runs on every device and in every dtype, op by op."""

from dataclasses import dataclass

from forerun.backends.backend import Backend
from forerun.backends.torch import fused, reference
from forerun.backends.torch.executor import EagerExecutor
from forerun.backends.torch.ops import TorchOps
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import Executor
from forerun.model.program import build_program
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBackend(Backend):
    """Runs a program with one implementation of its ops."""

    name: str
    row_exact: bool
    ops: TorchOps
    thread_exact: bool = False

    def executor(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        cache: TreeCache,
        unused: SkipSet = NOTHING,
        group: RankGroup | None = None,
    ) -> Executor:
        program = build_program(spec, unused, is_shared=group is not None)
        return EagerExecutor(spec, program, weights, cache, self.ops, group)


REFERENCE = TorchBackend(name="reference", row_exact=True, ops=reference)
FUSED = TorchBackend(name="fused", row_exact=False, ops=fused)
