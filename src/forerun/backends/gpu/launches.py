"""Groups a program's ops into kernel launches, each bound to its weights and buffers.

RMS norm has no kernel: a kernel that writes the residual stream x also writes h, which is x times the weight of the
next norm, and sums of squares. The kernel that reads h divides by the root of their mean.

Legend: R the largest number of rows of a pass, H hidden size, Q query heads, D head size, I intermediate size, V
vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Final, TypeAlias

import torch
from torch import Tensor

from forerun.backends.bind import FINAL_NORM, BoundWeights
from forerun.backends.gpu.passes.add_partials import add_partials, num_tiles_of
from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.exchange import RankExchange
from forerun.backends.gpu.passes.linear import linear_add, linear_partial, linear_silu
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import SkipSet, all_sublayers
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache

NARROW_ROWS: Final = 32  # Up to this many rows, a pass reads weights once and splits attention over the text.
EMBED_TILES: Final = 1  # The embedding writes a row's sum of squares as one part.
HALF_ROOM: Final = 16  # float16 goes up to 65504, so this leaves room for outliers of x up to a million before a norm.


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """The parameters on which a pass's launches depend; everything else is data on the device.

    Args:
        num_splits: upper bound of the number of attention splits entirely in the prefix.
        num_logit_rows: number of rows at the end that get logits.
        taps: layers after which the residual stream is copied.
    """

    num_rows: int
    num_splits: int
    num_logit_rows: int
    skipped: SkipSet
    has_row_skips: bool = False
    taps: tuple[int, ...] = ()


Launch = Callable[[PassShape], None]
DeviceWeights: TypeAlias = BoundWeights[DeviceLinear, Tensor]


class Buffers:
    """The buffers of a pass. `x` is the residual stream; `h`, `q`, `mixed` and `gated` have the compute dtype."""

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, *, max_rows: int, max_splits: int, dtype: torch.dtype
    ) -> None:
        device, linears = bound.norms[FINAL_NORM].device, list(bound.linears.values())
        most_tiles = max(num_tiles_of(spec.hidden_size), *(packed.num_tiles for packed in linears))

        def empty(width: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(max_rows, width, dtype=kind, device=device)

        self.x, self.h = empty(spec.hidden_size, torch.float32), empty(spec.hidden_size)
        self.q, self.mixed, self.gated = empty(spec.q_size), empty(spec.q_size), empty(spec.intermediate_size)
        self._features: dict[int, Tensor] = {}
        self.squares = torch.zeros(most_tiles, max_rows, device=device)
        self.workspace = SplitWorkspace.for_linears(linears, max_rows=max_rows, device=str(device))
        self.attention = AttentionWorkspace.for_heads(
            max_rows=NARROW_ROWS, num_heads=spec.num_heads, head_dim=spec.head_dim, max_splits=max_splits,
            device=str(device),
        )  # fmt: skip

    def features(self, num_taps: int) -> Tensor:
        """Buffer of the taps' copies, [R, num_taps, H]. It never changes, as recorded passes use its address."""
        if num_taps not in self._features:
            max_rows, size = self.x.shape
            self._features[num_taps] = self.x.new_zeros(max_rows, num_taps, size)
        return self._features[num_taps]


class LaunchList:
    """Builds the launches of a program without its skipped sublayers.

    Args:
        exchange: adds the partial sums of the ranks that share the model; None if the model is whole.
    """

    def __init__(
        self, spec: ModelSpec, bound: DeviceWeights, buffers: Buffers, rows: RowTable, cache: TreeCache, *,
        exchange: RankExchange | None, overlaps: bool,
    ) -> None:  # fmt: skip
        self._spec, self._bound, self._buffers, self._rows, self._cache = spec, bound, buffers, rows, cache
        self._exchange, self._overlaps, self._sublayers = exchange, overlaps, all_sublayers(spec.num_layers)
        self._scales = {
            name: half_scale(weight_H) if buffers.h.dtype == torch.float16 else 1.0
            for name, weight_H in bound.norms.items()
        }
        self._table_VH = as_plain(bound.table)

    def build(self, program: Sequence[Op]) -> list[tuple[Op, Launch]]:
        """The launches in order, without those of the head, each with the last op that it performs."""
        launches: list[tuple[Op, Launch]] = []
        tiles, norm = 0, ""  # Partial sums of squares by the last writer of x, and the next norm.
        inputs: Op | None = None  # The linear that is fused into the next op.
        for place, op in enumerate(program):
            match op.kind:
                case "embed":
                    tiles, norm = EMBED_TILES, next_norm(program, place)
                    launches.append((op, self._embed(norm)))
                case "linear":
                    inputs = op
                case "rope_append":
                    assert inputs is not None, "rope_append must follow a linear"
                    launches.append((op, self._qkv(op, inputs, self._input_norm(tiles, norm))))
                case "tree_attention":
                    launches.append((op, self._attention(op)))
                case "silu_mul":
                    assert inputs is not None, "silu_mul must follow a linear"
                    launches.append((op, self._gate(inputs, self._input_norm(tiles, norm))))
                case "linear_add":
                    tiles, norm = self._tiles_of(op), next_norm(program, place)
                    launches.append((op, self._add(op, norm)))
                case "add_partials":
                    assert inputs is not None, "add_partials must follow a linear"
                    tiles, norm = self._tiles_of(op), next_norm(program, place)
                    launches.append((inputs, self._partial(inputs)))
                    launches.append((op, self._add_partials(op, norm)))
                case "tap":
                    launches.append((op, self._tap(op)))
                case "mask" | "norm" | "select_rows":
                    pass  # Other launches do this.
        return launches

    def head(self, program: Sequence[Op]) -> tuple[DeviceLinear, InputNorm]:
        """The head's weights, and the norm that its inputs still need."""
        writer = next(op for op in reversed(program) if op.kind in ("linear_add", "add_partials", "embed"))
        norm = next_norm(program, program.index(writer))
        return self._bound.linears[program[-1].weights], self._input_norm(self._tiles_of(writer), norm)

    def _tiles_of(self, writer: Op) -> int:
        """Number of partial sums of squares that a writer of x stores."""
        match writer.kind:
            case "embed":
                return EMBED_TILES
            case "add_partials":
                return num_tiles_of(self._spec.hidden_size)
            case _:
                return self._bound.linears[writer.weights].num_tiles

    def _input_norm(self, tiles: int, norm: str) -> InputNorm:
        shape = NormShape(num_parts=tiles, size=self._spec.hidden_size, eps=self._spec.norm_eps)
        return InputNorm(squares=self._buffers.squares, shape=shape, scale=self._scales[norm])

    def _next_norm(self, norm: str) -> NextNorm:
        return NextNorm(
            weight=self._bound.norms[norm], h=self._buffers.h, squares=self._buffers.squares, scale=self._scales[norm]
        )

    def _embed(self, norm: str) -> Launch:
        table_VH, token_ids, x = self._table_VH, self._rows.token_ids, self._buffers.x
        following, overlaps = self._next_norm(norm), self._overlaps
        return lambda shape: embed(table_VH, token_ids, x, following, num_rows=shape.num_rows, overlaps=overlaps)

    def _qkv(self, op: Op, inputs: Op, norm: InputNorm) -> Launch:
        spec, bound, buffers, rows, overlaps = self._spec, self._bound, self._buffers, self._rows, self._overlaps
        keys_SKD, values_SKD = self._cache.keys_LSKD[op.layer], self._cache.values_LSKD[op.layer]
        packed, head_norms = bound.linears[inputs.weights], bound.head_norms.get(op.weights)
        cos_sin_P2D = bound.rotations[spec.rope_of(op.layer)]
        return lambda shape: qkv(
            buffers.h, packed, buffers.q, keys_SKD, values_SKD, cos_sin_P2D, rows,
            num_rows=shape.num_rows, spec=spec, head_norms=head_norms, norm=norm,
            workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _attention(self, op: Op) -> Launch:
        buffers, rows, overlaps = self._buffers, self._rows, self._overlaps
        keys_SKD, values_SKD = self._cache.keys_LSKD[op.layer], self._cache.values_LSKD[op.layer]
        num_heads = self._spec.num_heads

        def launch(shape: PassShape) -> None:
            if shape.num_rows > NARROW_ROWS:
                text_attention(
                    buffers.q, keys_SKD, values_SKD, buffers.mixed, rows,
                    num_rows=shape.num_rows, num_heads=num_heads, overlaps=overlaps,
                )  # fmt: skip
            else:
                tree_attention(
                    buffers.q, keys_SKD, values_SKD, buffers.mixed, rows,
                    num_rows=shape.num_rows, num_heads=num_heads, num_splits=shape.num_splits,
                    workspace=buffers.attention, overlaps=overlaps,
                    is_settled=True,  # The previous kernel writes only the slots of the pass's own rows.
                )  # fmt: skip

        return launch

    def _tap(self, op: Op) -> Launch:
        buffers = self._buffers

        def launch(shape: PassShape) -> None:
            features = buffers.features(len(shape.taps))[: shape.num_rows, shape.taps.index(op.layer)]
            features.copy_(buffers.x[: shape.num_rows])

        return launch

    def _gate(self, inputs: Op, norm: InputNorm) -> Launch:
        buffers, overlaps = self._buffers, self._overlaps
        packed = self._bound.linears[inputs.weights]
        return lambda shape: linear_silu(
            buffers.h, packed, buffers.gated,
            num_rows=shape.num_rows, norm=norm, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _add(self, op: Op, norm: str) -> Launch:
        buffers, overlaps = self._buffers, self._overlaps
        packed, following = self._bound.linears[op.weights], self._next_norm(norm)
        inputs, row_skips = self._inputs_of(op), self._rows.row_skips
        sublayer, num_sublayers = self._place_of(op), len(self._sublayers)
        return lambda shape: linear_add(
            inputs, packed, buffers.x,
            num_rows=shape.num_rows, next_norm=following, row_skips=row_skips if shape.has_row_skips else None,
            sublayer=sublayer, num_sublayers=num_sublayers, workspace=buffers.workspace, overlaps=overlaps,
        )  # fmt: skip

    def _partial(self, op: Op) -> Launch:
        exchange, workspace, overlaps = self._shared(), self._buffers.workspace, self._overlaps
        inputs, packed = self._inputs_of(op), self._bound.linears[op.weights]
        return lambda shape: linear_partial(
            inputs, packed, exchange, num_rows=shape.num_rows, workspace=workspace, overlaps=overlaps
        )

    def _add_partials(self, op: Op, norm: str) -> Launch:
        exchange, x, following, overlaps = self._shared(), self._buffers.x, self._next_norm(norm), self._overlaps
        row_skips, sublayer, num_sublayers = self._rows.row_skips, self._place_of(op), len(self._sublayers)
        return lambda shape: add_partials(
            exchange, x,
            num_rows=shape.num_rows, next_norm=following, row_skips=row_skips if shape.has_row_skips else None,
            sublayer=sublayer, num_sublayers=num_sublayers, overlaps=overlaps,
        )  # fmt: skip

    def _shared(self) -> RankExchange:
        assert self._exchange is not None, "partial products of a model that is not shared"
        return self._exchange

    def _inputs_of(self, op: Op) -> Tensor:
        return self._buffers.mixed if op.reads[0] == "mixed" else self._buffers.gated

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
    """The name of the weights of the first norm after an op."""
    return next(op.weights for op in program[place + 1 :] if op.kind == "norm")
