"""The time of a forward pass on this machine, of a target and of drafts that do not exist yet."""

from typing import Final

import torch

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import EngineConfig
from forerun.core.model_spec import ModelSpec
from forerun.distill.initial import fresh_weight
from forerun.engine.model_loading import Checkpoint
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner

CONTEXT: Final = 256  # tokens before the measured row


class PassTimes:
    """Measures forward passes of one row, with the kernels used for decoding."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig) -> None:
        self._checkpoint, self._config = checkpoint, config

    def of_target(self) -> float:
        """Seconds of a pass."""
        return self._time(
            self._checkpoint.load(self._config, exactness="fast", capacity=2 * CONTEXT, pace=None, on_progress=None)
        )

    def of_draft(self, spec: ModelSpec) -> float:
        """Seconds of a pass, with random weights."""
        device, dtype = self._config.device, self._checkpoint.dtype
        shapes, random = fused_shapes(tensor_plan(spec)), torch.Generator().manual_seed(0)
        weights = {name: fresh_weight(name, shape, random).to(device, dtype) for name, shape in shapes.items()}
        backend = self._checkpoint.choose_backend(self._config, "fast").backend
        return self._time(
            Runner(spec, LoadedWeights(weights), backend=backend, capacity=2 * CONTEXT, dtype=dtype, device=device)
        )

    def _time(self, runner: Runner) -> float:
        return measure_pace(runner, [1], context=CONTEXT).step_s(1)
