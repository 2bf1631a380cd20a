"""The torch backend: runs on every device and in every dtype, op by op."""

from dataclasses import dataclass

from forerun.backends.backend import Backend
from forerun.backends.torch import fused_ops, reference_ops
from forerun.backends.torch.executor import EagerExecutor
from forerun.backends.torch.ops import TorchOps
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import ModelExecutor
from forerun.model.program import Program
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

    def bind(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, group: RankGroup | None
    ) -> ModelExecutor:
        return EagerExecutor(spec, program, weights, cache, self.ops, group)


REFERENCE = TorchBackend(name="reference", row_exact=True, ops=reference_ops)
FUSED = TorchBackend(name="fused", row_exact=False, ops=fused_ops)
