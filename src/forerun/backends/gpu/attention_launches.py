"""The launches of a pass's attention: queries, keys and values, and the attention of their rows."""

from dataclasses import replace

import torch
from torch import Tensor

from forerun.backends.gpu.buffers import NARROW_ROWS, Buffers, DeviceWeights
from forerun.backends.gpu.pass_shape import Launch, PassShape
from forerun.backends.gpu.passes.attention import text_attention, tree_attention
from forerun.backends.gpu.passes.linear_buffers import InputNorm
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.passes.whole_heads import whole_heads
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec
from forerun.model.program import Op
from forerun.model.tree_cache import TreeCache


class AttentionLaunches:
    """Binds the launches of attention to a model's weights, buffers and cache."""

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, buffers: Buffers, rows: RowTable, cache: TreeCache, *,
        overlaps: bool,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._bound = bound
        self._buffers = buffers
        self._rows = rows
        self._cache = cache
        self._overlaps = overlaps

    def whole_heads(self, op: Op) -> Launch:
        spec = self._spec
        bound = self._bound
        buffers = self._buffers
        rows = self._rows
        overlaps = self._overlaps
        keys_SKD, values_SKD = self._cache.layer(op.layer)
        norms = bound.head_norms[op.weights]
        cos_sin_P2D = bound.rotations[spec.rope_of(op.layer)]
        return lambda shape: whole_heads(
            buffers.qkv, buffers.q, keys_SKD, values_SKD, cos_sin_P2D, rows, num_rows=shape.num_rows, spec=spec,
            norms=norms, query_scales_P=bound.query_scales[spec.head_dim], overlaps=overlaps,
        )  # fmt: skip

    def qkv(self, op: Op, inputs: Op, norm: InputNorm) -> Launch:
        bound = self._bound
        buffers = self._buffers
        rows = self._rows
        overlaps = self._overlaps
        own = self._spec.of_layer(op.layer)
        if own.borrows(op.layer):
            own = replace(own, num_kv_heads=0)
        keys_SKD, values_SKD = self._cache.layer(own.cached_layer(op.layer))
        packed = bound.linears[inputs.weights]
        head_norms = bound.head_norms.get(op.weights)
        norms: tuple[Tensor, ...] | None = head_norms
        if head_norms is not None and own.value_norm:
            norms = (*head_norms, torch.ones_like(head_norms[0]))
        cos_sin_P2D = bound.rotations[own.rope_of(op.layer)]
        query_scales_P = bound.query_scales[own.head_dim]
        return lambda shape: qkv(
            buffers.h, packed, buffers.q, keys_SKD, values_SKD, cos_sin_P2D, rows,
            num_rows=shape.num_rows, spec=own, head_norms=norms, query_scales_P=query_scales_P,
            norm=norm, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def attention(self, op: Op) -> Launch:
        buffers = self._buffers
        rows = self._rows
        overlaps = self._overlaps
        keys_SKD, values_SKD = self._cache.layer(self._spec.cached_layer(op.layer))
        num_heads = self._spec.num_heads
        window = self.window_of(op.layer)
        q, mixed = (buffers.of_layer(name, op.layer) for name in ("q", "mixed"))
        sinks_Q = self._bound.sinks.get(op.weights)

        def launch(shape: PassShape) -> None:
            if shape.num_rows > NARROW_ROWS:
                text_attention(
                    q, keys_SKD, values_SKD, mixed, rows,
                    num_rows=shape.num_rows, num_heads=num_heads, overlaps=overlaps, window=window, sinks_Q=sinks_Q,
                )  # fmt: skip
            else:
                tree_attention(
                    q, keys_SKD, values_SKD, mixed, rows,
                    num_rows=shape.num_rows, num_heads=num_heads, num_splits=shape.num_splits,
                    workspace=buffers.attention, overlaps=overlaps, window=window, sinks_Q=sinks_Q,
                    is_settled=True,  # The previous kernel writes only the slots of the pass's own rows.
                )  # fmt: skip

        return launch

    def kind_of(self, layer: int) -> tuple[int, int, int]:
        """What the attention kernels of a layer depend on: its window and its heads."""
        own = self._spec.of_layer(layer)
        return self.window_of(layer), own.num_kv_heads, own.head_dim

    def window_of(self, layer: int) -> int:
        """The window of a layer's attention, or 0 if no text of the cache is longer."""
        window = self._spec.window_of(layer)
        return 0 if window is None or window >= self._cache.capacity else window
