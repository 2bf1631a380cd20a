"""What runs a model's program: the C library on a CPU, Triton's kernels on a GPU, else torch op by op."""

from typing import Protocol

from torch import Tensor

from forerun.backends.choose import Kernels, ModelKernels, NativeKernels, TritonKernels
from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.torch.executor import EagerExecutor, Observer
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.inputs import ForwardInput
from forerun.model.program import build_program
from forerun.model.tree_cache import TreeCache


class Executor(Protocol):
    """A program bound to weights and a cache."""

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> Tensor:
        """Logits [num_logit_rows, V]; `observe` sees each op and the buffer it wrote."""
        ...


def build_executor(
    spec: ModelSpec,
    weights: dict[str, Tensor],
    cache: TreeCache,
    kernels: ModelKernels,
    weight_format: WeightFormat,
    unused: SkipSet = NOTHING,
) -> Executor:
    """Bind the model's program, without the sublayers `unused`. `weights` is emptied on the way."""
    program = tuple(op for op in build_program(spec) if op.sublayer not in unused)
    match kernels:
        case NativeKernels():
            return NativeExecutor(spec, program, weights, cache, weight_format)
        case TritonKernels():
            from forerun.backends.gpu.executor import DeviceExecutor  # brings Triton along, which not every machine has

            return DeviceExecutor(spec, program, weights, cache, weight_format)
        case Kernels():
            return EagerExecutor(spec, program, weights, cache, kernels, weight_format)
