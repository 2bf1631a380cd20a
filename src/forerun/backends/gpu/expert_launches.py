"""The launches of a mixture of experts."""

from forerun.backends.gpu.buffers import Buffers, DeviceWeights
from forerun.backends.gpu.pass_shape import Launch, PassShape
from forerun.backends.gpu.passes.expert_pairs import choose_experts
from forerun.backends.gpu.passes.experts import add_experts, multiply_experts
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec
from forerun.model.program import Op


class ExpertLaunches:
    """Binds the launches of experts to a model's weights and buffers."""

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, buffers: Buffers, rows: RowTable, *, overlaps: bool
    ) -> None:
        self._spec = spec
        self._bound = bound
        self._buffers = buffers
        self._rows = rows
        self._overlaps = overlaps

    def experts(self, op: Op, norm: InputNorm, following: NextNorm, *, sublayer: int, num_sublayers: int) -> Launch:
        """Choose by the router's scores, multiply, and add to the residual stream."""
        spec = self._spec
        buffers = self._buffers
        rows = self._rows
        overlaps = self._overlaps
        ((gate_up, out),) = self._bound.experts[op.weights]
        num_experts = spec.num_experts
        num_chosen = spec.num_chosen_experts

        def launch(shape: PassShape) -> None:
            num_rows = shape.num_rows
            choose_experts(
                buffers.router, rows.lengths, buffers.pairs,
                num_rows=num_rows, num_chosen=num_chosen, overlaps=overlaps,
            )  # fmt: skip
            multiply_experts(
                buffers.h, gate_up, out, buffers.pairs, norm=norm, gate=spec.gate, num_rows=num_rows,
                num_experts=num_experts, overlaps=overlaps,
            )  # fmt: skip
            add_experts(
                buffers.pairs, buffers.x, following, num_rows=num_rows, num_experts=num_experts, num_chosen=num_chosen,
                row_skips=rows.row_skips if shape.has_row_skips else None,
                sublayer=sublayer, num_sublayers=num_sublayers, overlaps=overlaps,
            )  # fmt: skip

        return launch
