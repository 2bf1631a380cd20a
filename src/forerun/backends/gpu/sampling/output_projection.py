"""The output projection fused with sampling. The kernel that computes scores also adds noise and finds maxima, so
sampling writes no scores to memory, and a top-k writes only totals, of which it reads a few tiles.

Scores have the same bits as those of `linear`, since the same code computes a tile's sums.

Legend: T rows, I inputs, V vocabulary; in kernels R rows of a tile (ROW_TILE), O tokens of a tile (block_out).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROWS, await_inputs
from forerun.backends.gpu.passes.epilogue import load_norm, norm_and_bias
from forerun.backends.gpu.passes.linear_buffers import InputNorm, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.split_k import request_weights, split_k_matmul, whole_sums
from forerun.backends.gpu.sampling.gumbel_noise import Draw, totals_of
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK, join_samples, join_topk
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima, store_maxima


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputProjection:
    """A model's output projection, and what its kernels read and write.

    Args:
        h: [any, I] in the compute dtype, the rows' last hidden states, to which `norm` is still to be applied.
        packed: the weight [V, I].
        maxima: with room for all rows of a call.
    """

    h: Tensor
    packed: DeviceLinear
    norm: InputNorm
    workspace: SplitWorkspace
    maxima: TileMaxima
    overlaps: bool


def sample_tokens(head: OutputProjection, draw: Draw, sampled: Sampled, *, num_rows: int, first_row: int = 0) -> None:
    """The best token after each row first_row to num_rows of h; among equal totals, the lowest token."""
    packed = head.packed
    count = num_rows - first_row
    launch_head(head, draw, num_rows=num_rows, first_row=first_row, vocab_size=packed.num_out, is_topk=False)
    join_samples(head.maxima, sampled, num_tiles=packed.num_tiles, num_rows=count, overlaps=head.overlaps)


def topk_tokens(
    head: OutputProjection,
    draw: Draw,
    topk: TopK,
    *,
    num_children: int,
    vocab_size: int,
    num_rows: int,
    first_row: int = 0,
) -> None:
    """The likeliest tokens of the first `vocab_size` columns after each row, and the log-softmax of their totals."""
    packed = head.packed
    count = num_rows - first_row
    assert vocab_size <= packed.num_out, (vocab_size, packed.num_out)
    launch_head(head, draw, num_rows=num_rows, first_row=first_row, vocab_size=vocab_size, is_topk=True)
    join_topk(
        head.maxima, topk, column_ids=draw.column_ids, num_tiles=packed.num_tiles, num_rows=count,
        vocab_size=vocab_size, block=packed.tiles.block_out, num_children=num_children, overlaps=head.overlaps,
    )  # fmt: skip


def launch_head(
    head: OutputProjection, draw: Draw, *, num_rows: int, first_row: int, vocab_size: int, is_topk: bool
) -> None:
    """Compute the maxima of every tile of the vocabulary."""
    packed = head.packed
    rows = num_rows - first_row
    head_kernel[packed.grid(rows)](
        head.h, packed.weight, head.workspace, draw, head.maxima, first_row, num_rows, vocab_size, head.norm.sums,
        NORM=head.norm.shape, IS_TOPK=is_topk, **packed.options(rows, head.overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_row", "end_row"])
def head_kernel(
    h, weight, workspace, draw, maxima, first_row, end_row, vocab_size, norm,
    SHAPE: tl.constexpr, NORM: tl.constexpr, IS_TOPK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """maxima[t, tile] = max over v of (row_scales[t] * (h[t] . W[v]) + bias[v]) / temperature + g[t, v].

    h [T, I] in the compute dtype, W [V, I] packed, a `Draw`, a `TileMaxima` of the rows first_row to end_row.
    Programs are (block of rows, tile of the vocabulary, split of inputs).
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    first = first_row + tl.program_id(0) * (NUM_TILES * ROWS)
    tokens_O = tl.program_id(1) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
    outs_O = tl.minimum(tokens_O, SHAPE.num_out - 1)
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    loaded = load_norm(norm, first, end_row, NORM, SHAPE)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        for row_tile in tl.static_range(NUM_TILES):
            sums_RO = whole_sums(sums, workspace, row_tile, SHAPE)
            start = first + row_tile * ROWS
            scores_RO = norm_and_bias(sums_RO, weight.bias, norm, loaded[row_tile], outs_O, NORM)
            rows_R = start + tl.arange(0, ROWS)
            totals_RO = totals_of(scores_RO, tokens_O, vocab_size, rows_R, rows_R < end_row, draw, IS_TOPK)
            store_maxima(
                totals_RO, tokens_O, rows_R - first_row, rows_R < end_row, tl.program_id(1), tl.num_programs(1),
                vocab_size, maxima, IS_TOPK,
            )  # fmt: skip
