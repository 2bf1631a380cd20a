"""Groups a program's ops into kernel launches, each bound to its weights and buffers.

RMS norm has no kernel: a kernel that writes the residual stream x also writes h, which is x times the weight of the
next norm, and sums of squares. The kernel that reads h divides by the root of their mean.

Legend: R the largest number of rows of a pass, H hidden size, Q query heads, D head size, I intermediate size, V
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Final

import torch
from torch import Tensor

from forerun.backends.gpu.attention_launches import AttentionLaunches
from forerun.backends.gpu.buffers import Buffers, DeviceWeights
from forerun.backends.gpu.expert_launches import ExpertLaunches
from forerun.backends.gpu.pass_shape import Launch, PassShape
from forerun.backends.gpu.passes.add_partials import add_partials, num_tiles_of, sum_partials
from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.exchange import RankExchange
from forerun.backends.gpu.passes.layer_inputs import gate_input, layer_inputs
from forerun.backends.gpu.passes.linear import linear, linear_add, linear_gate, linear_partial
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, NormShape
from forerun.backends.gpu.passes.norm_add import norm_add
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache

WHOLE_ROW: Final = 1  # A kernel whose programs compute whole rows writes a row's sum of squares as one part.
NO_NORM: Final = ""  # The name of the norm before a linear layer that has none.
HALF_ROOM: Final = 16  # float16 goes up to 65504, so this leaves room for outliers of x up to a million before a norm.


class LaunchList:
    """Builds the launches of a program without its skipped sublayers.

    Args:
        exchange: adds the partial sums of the ranks that share the model; None if the model is whole.
    """

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, buffers: Buffers, rows: RowTable, cache: TreeCache, *,
        exchange: RankExchange | None, overlaps: bool,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._bound = bound
        self._buffers = buffers
        self._rows = rows
        self._exchange = exchange
        self._overlaps = overlaps
        self._sublayers = all_sublayers(spec.num_layers)
        self.heads = AttentionLaunches(spec, bound, buffers, rows, cache, overlaps=overlaps)
        self._of_experts = ExpertLaunches(spec, bound, buffers, rows, overlaps=overlaps)
        self._scales = {
            name: half_scale(weight_H) if buffers.h.dtype == torch.float16 else 1.0
            for name, weight_H in bound.norms.items()
        } | {NO_NORM: 1.0}
        self._ones_H = torch.ones_like(buffers.x[0])
        self._table_VH = as_plain(bound.table)

    def build(self, program: Sequence[Op]) -> list[tuple[Op, Launch]]:
        """The launches in order, without those of the head, each with the last op that it performs."""
        launches: list[tuple[Op, Launch]] = []
        tiles = 0  # Partial sums of squares by the last writer of x.
        norm = ""  # The next one.
        inputs: Op | None = None  # The linear that is fused into the next op.
        for place, op in enumerate(program):
            match op.kind:
                case "linear":
                    inputs = op
                    if op.writes in ("branch", "layer_projection"):
                        launches.append((op, self._product(op, self._input_norm(0, NO_NORM))))
                    elif op.writes == "router" or (op.writes == "qkv" and self._spec.qk_norm_whole):
                        launches.append((op, self._product(op, self._input_norm(tiles, norm))))
                case "rope_append" if self._spec.qk_norm_whole:
                    launches.append((op, self.heads.whole_heads(op)))
                case "rope_append":
                    assert inputs is not None, "rope_append must follow a linear"
                    launches.append((op, self.heads.qkv(op, inputs, self._input_norm(tiles, norm))))
                case "tree_attention":
                    launches.append((op, self.heads.attention(op)))
                case "silu_mul" | "gelu_mul":
                    assert inputs is not None, f"{op.kind} must follow a linear"
                    launches.append((op, self._gate(inputs, self._input_norm(tiles, norm))))
                case "add_partials":
                    assert inputs is not None, "add_partials must follow a linear"
                    tiles = self._tiles_of(op)
                    norm = next_norm(program, place)
                    launches.append((inputs, self._partial(inputs)))
                    launches.append((op, self._add_partials(op, norm)))
                case "sum_partials":
                    assert inputs is not None, "sum_partials must follow a linear"
                    launches += [(inputs, self._partial(inputs)), (op, self._sum_partials())]
                case "gate_input":
                    assert inputs is not None, "gate_input must follow a linear"
                    launches.append((op, self._gate_input(op, inputs)))
                case "norm_add" if program[place + 1].kind == "scale":
                    pass  # The launch of the factor does this.
                case "embed" | "linear_add" | "experts" | "layer_inputs" | "norm_add" | "scale":
                    read = self._input_norm(tiles, norm)
                    tiles = self._tiles_of(op)
                    norm = next_norm(program, place)
                    launches.append((op, self._write_stream(op, program[place - 1], read, norm)))
                case "tap":
                    launches.append((op, self._tap(op)))
                case "mask" | "norm" | "norm_qk" | "select_rows":
                    pass  # Other launches do this.
                case _:
                    raise AssertionError(f"these kernels have no {op.kind}")
        return launches

    def _write_stream(self, op: Op, before: Op, read: InputNorm, norm: str) -> Launch:
        """The launch of an op that writes x, and the inputs of the next norm.

        Args:
            before: the op before it.
            read: the norm that its inputs still need, if they are h.
        """
        match op.kind:
            case "embed":
                return self._embed(norm)
            case "linear_add":
                return self._add(op, norm)
            case "experts":
                place = self._place_of(op)
                count = len(self._sublayers)
                return self._of_experts.experts(op, read, self._next_norm(norm), sublayer=place, num_sublayers=count)
            case "layer_inputs":
                return self._layer_inputs(op, norm)
            case "norm_add":
                return self._norm_add(op, norm, None)
            case _:
                added = before if before.kind == "norm_add" else None
                return self._norm_add(added, norm, self._bound.scales[op.weights])

    def head(self, program: Sequence[Op]) -> tuple[DeviceLinear, InputNorm]:
        """The head's weights, and the norm that its inputs still need."""
        writer = next(op for op in reversed(program) if op.writes == "x" and op.kind != "select_rows")
        norm = self._input_norm(self._tiles_of(writer), next_norm(program, program.index(writer)))
        shape = norm.shape._replace(cap=self._spec.logit_cap or 0.0)
        return self._bound.linears[program[-1].weights], replace(norm, shape=shape)

    def _tiles_of(self, writer: Op) -> int:
        """Number of partial sums of squares that a writer of x stores."""
        match writer.kind:
            case "embed" | "norm_add" | "scale" | "experts" | "layer_inputs":
                return WHOLE_ROW
            case "add_partials":
                return num_tiles_of(self._spec.hidden_size)
            case _:
                return self._bound.linears[writer.weights].num_tiles

    def _input_norm(self, tiles: int, norm: str) -> InputNorm:
        num_parts = 0 if norm == NO_NORM else tiles
        shape = NormShape(num_parts=num_parts, size=self._spec.hidden_size, eps=self._spec.norm_eps)
        return InputNorm(squares=self._buffers.squares, shape=shape, scale=self._scales[norm])

    def _next_norm(self, norm: str) -> NextNorm:
        weight_H = self._ones_H if norm == NO_NORM else self._bound.norms[norm]
        buffers = self._buffers
        return NextNorm(weight=weight_H, h=buffers.h, squares=buffers.squares, scale=self._scales[norm])

    def _embed(self, norm: str) -> Launch:
        table_VH = self._table_VH
        token_ids = self._rows.token_ids
        x = self._buffers.x
        following = self._next_norm(norm)
        scale = self._bound.embedding_scale
        overlaps = self._overlaps
        return lambda shape: embed(
            table_VH, token_ids, x, following, scale=scale, num_rows=shape.num_rows, overlaps=overlaps
        )

    def _product(self, op: Op, norm: InputNorm) -> Launch:
        buffers = self._buffers
        overlaps = self._overlaps
        packed = self._bound.linears[op.weights]
        inputs = self._inputs_of(op)
        products = getattr(buffers, op.writes)
        return lambda shape: linear(
            inputs, packed, products,
            num_rows=shape.num_rows, first_row=0, norm=norm, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _tap(self, op: Op) -> Launch:
        buffers = self._buffers

        def launch(shape: PassShape) -> None:
            features = buffers.features(len(shape.taps))[: shape.num_rows, shape.taps.index(op.layer)]
            features.copy_(buffers.x[: shape.num_rows])

        return launch

    def _gate(self, inputs: Op, norm: InputNorm) -> Launch:
        buffers = self._buffers
        overlaps = self._overlaps
        packed = self._bound.linears[inputs.weights]
        gate = self._spec.gate
        return lambda shape: linear_gate(
            buffers.h, packed, buffers.gated,
            gate=gate, num_rows=shape.num_rows, norm=norm, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _add(self, op: Op, norm: str) -> Launch:
        buffers = self._buffers
        overlaps = self._overlaps
        packed = self._bound.linears[op.weights]
        following = self._next_norm(norm)
        inputs = self._inputs_of(op)
        row_skips = self._rows.row_skips
        sublayer = self._place_of(op)
        num_sublayers = len(self._sublayers)
        return lambda shape: linear_add(
            inputs, packed, buffers.x,
            num_rows=shape.num_rows, next_norm=following, row_skips=row_skips if shape.has_row_skips else None,
            sublayer=sublayer, num_sublayers=num_sublayers, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _partial(self, op: Op) -> Launch:
        exchange = self._shared()
        workspace = self._buffers.workspace
        overlaps = self._overlaps
        inputs = self._inputs_of(op)
        packed = self._bound.linears[op.weights]
        return lambda shape: linear_partial(
            inputs, packed, exchange, num_rows=shape.num_rows, workspace=workspace, overlaps=overlaps
        )

    def _add_partials(self, op: Op, norm: str) -> Launch:
        exchange = self._shared()
        x = self._buffers.x
        following = self._next_norm(norm)
        overlaps = self._overlaps
        row_skips = self._rows.row_skips
        sublayer = self._place_of(op)
        num_sublayers = len(self._sublayers)
        return lambda shape: add_partials(
            exchange, x,
            num_rows=shape.num_rows, next_norm=following, row_skips=row_skips if shape.has_row_skips else None,
            sublayer=sublayer, num_sublayers=num_sublayers, overlaps=overlaps,
        )  # fmt: skip

    def _sum_partials(self) -> Launch:
        exchange = self._shared()
        buffers = self._buffers
        overlaps = self._overlaps
        return lambda shape: sum_partials(
            exchange, buffers.branch, like=buffers.h, num_rows=shape.num_rows, overlaps=overlaps
        )

    def _norm_add(self, op: Op | None, norm: str, scale: float | None) -> Launch:
        """The addition of an op's branch, if there is one, and then the factor of the layer, if there is one."""
        buffers = self._buffers
        eps = self._spec.norm_eps
        overlaps = self._overlaps
        row_skips = self._rows.row_skips
        branch, weight_H = (None, None) if op is None else (buffers.branch, self._bound.norms[op.weights])
        is_skippable = op is not None and op.sublayer is not None
        following = self._next_norm(norm)
        num_sublayers = len(self._sublayers)
        sublayer = self._place_of(op) if op is not None and is_skippable else 0
        return lambda shape: norm_add(
            branch, weight_H, buffers.x, following, eps=eps,
            num_rows=shape.num_rows, row_skips=row_skips if shape.has_row_skips and is_skippable else None,
            sublayer=sublayer, num_sublayers=num_sublayers, scale=scale, overlaps=overlaps,
        )  # fmt: skip

    def _layer_inputs(self, op: Op, norm: str) -> Launch:
        """The inputs of all layers, and then those of the first norm: the residual stream was projected without it."""
        spec = self._spec
        bound = self._bound
        buffers = self._buffers
        overlaps = self._overlaps
        assert bound.layer_table is not None, "a table of the embeddings for each layer"
        table = as_plain(bound.layer_table)
        token_ids = self._rows.token_ids
        weight_P = bound.norms[op.weights]
        begin = self._norm_add(None, norm, None)

        def launch(shape: PassShape) -> None:
            layer_inputs(
                buffers.layer_projection, table, token_ids, weight_P, buffers.layer_inputs,
                projection_scale=spec.hidden_size**-0.5, token_scale=bound.layer_table_scale, eps=spec.norm_eps,
                num_rows=shape.num_rows, overlaps=overlaps,
            )  # fmt: skip
            begin(shape)

        return launch

    def _gate_input(self, op: Op, inputs: Op) -> Launch:
        buffers = self._buffers
        overlaps = self._overlaps
        multiply = self._product(replace(inputs, writes="gate_products"), self._input_norm(0, NO_NORM))

        def launch(shape: PassShape) -> None:
            multiply(shape)
            gate_input(
                buffers.gate_products, buffers.layer_inputs, buffers.gate_input,
                layer=op.layer, num_rows=shape.num_rows, overlaps=overlaps,
            )  # fmt: skip

        return launch

    def _shared(self) -> RankExchange:
        assert self._exchange is not None, "partial products of a model that is not shared"
        return self._exchange

    def _inputs_of(self, op: Op) -> Tensor:
        found: Tensor = getattr(self._buffers, "h" if op.reads[0] == "x" else op.reads[0])
        return found

    def _place_of(self, op: Op) -> int:
        assert op.sublayer is not None, "a sum belongs to a sublayer"
        return self._sublayers.index(op.sublayer)


def half_scale(weight_H: Tensor) -> float:
    """A power of two by which x times this norm's weight is multiplied to use the range of float16 well.

    It leaves room for outliers. Without it, the product would be subnormal in early layers, where both are small.
    """
    largest = float(weight_H.abs().max())
    return 2.0 ** -ceil(log2(HALF_ROOM * largest)) if largest else 1.0


def next_norm(program: Sequence[Op], place: int) -> str:
    """The name of the weights of the first norm after an op, or NO_NORM if a linear layer reads x as it is."""
    following = (op for op in program[place + 1 :] if op.kind in ("norm", "linear") and op.reads == ("x",))
    reader = next(following)
    return reader.weights if reader.kind == "norm" else NO_NORM
