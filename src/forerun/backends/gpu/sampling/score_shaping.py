"""Applies a request's biases, penalties and temperature to scores in memory, in place.

The arithmetic is that of `sampling.sample.LogitShaper`, operation by operation, so that rounds on the device and the
host's loop get the same bits. Its parameters are data on the device, so one recorded graph serves every request.

Legend: R rows, V columns of scores (tokens, for a draft those it has), N nodes of the tree, B columns of a leader tile.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.sampling.tile_maxima import NO_TOTAL, order_total, ordered_bits
from forerun.core.config import SamplingParams

SCORE_BLOCK: Final = 512  # Columns of a program.
LEADER_BLOCK: Final = 128  # Columns of a tile whose best score is stored.
TILES_OF_BLOCK = tl.constexpr(SCORE_BLOCK // LEADER_BLOCK)

# Places in `RequestSettings.numbers`.
TEMPERATURE, REPETITION, FREQUENCY, PRESENCE = map(tl.constexpr, range(4))


class RequestSettings(NamedTuple):
    """A request's settings for shaping scores. The tensors' addresses never change.

    Args:
        numbers: float32 [4] temperature, repetition, frequency and presence penalty.
        has_penalties: int32 [1]
        biases: float32 [vocabulary]
        written: int32 [vocabulary], how often each token was generated.
        seen: int32 [vocabulary], 1 for tokens of the prompt or the generated text.
    """

    numbers: Tensor
    has_penalties: Tensor
    biases: Tensor
    written: Tensor
    seen: Tensor

    @classmethod
    def for_vocabulary(cls, vocab_size: int, device: str) -> "RequestSettings":
        """Settings that change nothing."""
        return cls(
            numbers=torch.tensor([1.0, 1.0, 0.0, 0.0], device=device),
            has_penalties=torch.zeros(1, dtype=torch.int32, device=device),
            biases=torch.zeros(vocab_size, device=device),
            written=torch.zeros(vocab_size, dtype=torch.int32, device=device),
            seen=torch.zeros(vocab_size, dtype=torch.int32, device=device),
        )

    def set_request(self, params: SamplingParams, prompt_ids: Sequence[int], written_ids: Sequence[int]) -> None:
        """Set a request's values.

        Args:
            written_ids: the tokens generated after the prompt so far.
        """
        device = self.biases.device
        vocab_size = len(self.biases)
        temperature = 1.0 if params.is_greedy else params.temperature
        numbers = [temperature, params.repetition_penalty, params.frequency_penalty, params.presence_penalty]
        self.numbers.copy_(torch.tensor(numbers))
        self.has_penalties.fill_(int(params.has_penalties))
        for tensor in (self.biases, self.written, self.seen):
            tensor.zero_()
        known = {token: bias for token, bias in params.logit_bias.items() if 0 <= token < vocab_size}
        if known:
            self.biases[torch.tensor(list(known), device=device)] = torch.tensor(list(known.values()), device=device)
        if params.has_penalties:
            self.seen[torch.tensor([*prompt_ids, *written_ids], dtype=torch.int64, device=device)] = 1
            written = torch.bincount(torch.tensor(written_ids, dtype=torch.int64), minlength=vocab_size)
            self.written.copy_(written)


class ScoreRows(NamedTuple):
    """Scores of some rows and the intermediate results of filtering them.

    Args:
        scores: float32 [R, V or more] with the row stride of the head that writes them.
        tile_bests: float32 [R, ceil(V / LEADER_BLOCK)] the best score of each tile; NaN if the tile contains NaN.
        keys: int64 [R, V] the leading tokens' keys, in any order.
        cutoffs: int64 [R]; tokens with keys above it survive the filters.
    """

    scores: Tensor
    tile_bests: Tensor
    keys: Tensor
    cutoffs: Tensor

    @classmethod
    def over(cls, scores_RV: Tensor, *, num_rows: int, num_columns: int) -> "ScoreRows":
        """Room for the first rows and columns of a head's scores."""
        device = scores_RV.device
        return cls(
            scores=scores_RV[:num_rows],
            tile_bests=torch.empty(num_rows, triton.cdiv(num_columns, LEADER_BLOCK), device=device),
            keys=torch.empty(num_rows, num_columns, dtype=torch.int64, device=device),
            cutoffs=torch.empty(num_rows, dtype=torch.int64, device=device),
        )

    @property
    def num_columns(self) -> int:
        return self.keys.shape[1]


class RowPaths(NamedTuple):
    """The drafted tokens on the path to each row, which count as generated for that row.

    Args:
        tokens: int32 [N] of a tree's nodes, the root first.
        ancestors: int64 [N], bit i of node j is set if i is j or above it.
        row_nodes: int32 [R], the node of each row, -1 for a spare row; None: row i is node i.
    """

    tokens: Tensor
    ancestors: Tensor
    row_nodes: Tensor | None


def shape_scores(
    rows: ScoreRows, settings: RequestSettings, paths: RowPaths, *, num_rows: int, column_ids: Tensor | None,
    overlaps: bool,
) -> None:  # fmt: skip
    """Apply bias, penalties and temperature to the first rows, in place, and store the best score of each tile.

    Args:
        column_ids: as in `Draw`.
    """
    shape_kernel[(triton.cdiv(rows.num_columns, SCORE_BLOCK), num_rows)](
        rows.scores, rows.scores.stride(0), rows.tile_bests, rows.tile_bests.shape[1], rows.num_columns, settings,
        paths, column_ids, BLOCK_V=SCORE_BLOCK, CAPACITY=len(paths.tokens), OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def shape_kernel(
    scores, score_stride, tile_bests, num_tiles, vocab_size, settings, paths, column_ids,
    BLOCK_V: tl.constexpr, CAPACITY: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """score = penalised(score[r, v] + bias[token]) / temperature, see `penalised`; tile_bests[r, tile] = its maximum.

    scores [R, score_stride] float32, tile_bests [R, num_tiles], settings a `RequestSettings`, paths a `RowPaths`,
    column_ids int32 [V] or None.
    Programs are (block of columns, row).
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(1)
    columns_V = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_there_V = columns_V < vocab_size
    tokens_V = columns_V
    if column_ids is not None:
        tokens_V = tl.load(column_ids + columns_V, mask=is_there_V, other=0)
    places_V = scores + row.to(tl.int64) * score_stride + columns_V
    scores_V = tl.load(places_V, mask=is_there_V, other=NO_TOTAL)
    scores_V += tl.load(settings.biases + tokens_V, mask=is_there_V, other=0.0)
    if tl.load(settings.has_penalties) != 0:
        node = row if paths.row_nodes is None else tl.maximum(tl.load(paths.row_nodes + row), 0)
        on_path_V = count_on_path(tokens_V, paths, node, CAPACITY)
        scores_V = penalised(scores_V, tokens_V, on_path_V, is_there_V, settings)
    scores_V = tl.div_rn(scores_V, tl.broadcast_to(tl.load(settings.numbers + TEMPERATURE), scores_V.shape))
    tl.store(places_V, scores_V, mask=is_there_V)
    order_V = tl.where(is_there_V, ordered_bits(scores_V), ordered_bits(tl.full((BLOCK_V,), NO_TOTAL, tl.float32)))
    best_T = order_total(tl.max(tl.reshape(order_V, (TILES_OF_BLOCK, BLOCK_V // TILES_OF_BLOCK)), axis=1))
    tiles_T = tl.program_id(0) * TILES_OF_BLOCK + tl.arange(0, TILES_OF_BLOCK)
    tl.store(tile_bests + row * num_tiles + tiles_T, best_T, mask=tiles_T < num_tiles)


@triton.jit
def count_on_path(tokens_V, paths, node, CAPACITY: tl.constexpr):
    """[V] how often each token is on the path from the root to a node, without the root, which is already counted."""
    node_N = tl.arange(0, CAPACITY)
    is_above_N = ((tl.load(paths.ancestors + node) >> node_N.to(tl.int64)) & 1) != 0
    tokens_N = tl.load(paths.tokens + node_N)
    is_match_NV = (tokens_N[:, None] == tokens_V[None, :]) & (is_above_N & (node_N > 0))[:, None]
    return tl.sum(is_match_NV.to(tl.int32), axis=0)


@triton.jit
def penalised(scores_V, tokens_V, on_path_V, is_there_V, settings):
    """s - frequency * n - presence * min(n, 1) for a token generated n times. For tokens seen before, s is
    score / repetition if the score is positive, otherwise score * repetition; for others it is the score."""
    numbers = settings.numbers
    repetition_V = tl.broadcast_to(tl.load(numbers + REPETITION), scores_V.shape)
    is_seen_V = (tl.load(settings.seen + tokens_V, mask=is_there_V, other=0) + on_path_V) > 0
    repeated_V = tl.where(scores_V > 0.0, tl.div_rn(scores_V, repetition_V), scores_V * repetition_V)
    scores_V = tl.where(is_seen_V, repeated_V, scores_V)
    count_V = (tl.load(settings.written + tokens_V, mask=is_there_V, other=0) + on_path_V).to(tl.float32)
    scores_V = scores_V - tl.load(numbers + FREQUENCY) * count_V
    return scores_V - tl.load(numbers + PRESENCE) * tl.minimum(count_V, 1.0)
