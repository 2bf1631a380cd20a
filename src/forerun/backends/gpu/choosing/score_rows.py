"""Rows of scores on a GPU to tokens, for a loop that has the host between its steps.

Legend: T rows, V vocabulary, C children.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.backends.gpu.choosing.noise import Noise
from forerun.backends.gpu.choosing.selection import (
    SCORE_BLOCK,
    Choice,
    Draw,
    Ranking,
    choose_from_scores,
    rank_from_scores,
)
from forerun.backends.gpu.choosing.tile_maxima import MOST_CHILDREN, Leaders
from forerun.backends.gpu.language import on_device

__all__ = ["MOST_CHILDREN", "RowNoise", "choose_rows", "rank_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """Whose noise the rows get: that of `seed_mix`, splitmix64 of a seed as a signed number, at these places."""

    seed_mix: int
    positions: Sequence[int]


def choose_rows(
    scores_TV: Tensor, noise: RowNoise | None, temperature: float
) -> tuple[list[int], list[float], list[float]]:
    """The best token of each row by score / temperature + noise, its total, and the next best total."""
    num_rows, device = len(scores_TV), scores_TV.device
    numbers_2T = torch.empty(2, num_rows, device=device)
    choice = Choice(
        tokens=torch.empty(num_rows, dtype=torch.int32, device=device), best=numbers_2T[0], second=numbers_2T[1]
    )
    leaders = leaders_for(scores_TV, ranks=False)
    with on_device(device):
        choose_from_scores(scores_TV, draw_of(noise, temperature, device), choice, leaders, overlaps=False)
    best, second = numbers_2T.tolist()
    return choice.tokens.tolist(), best, second


def rank_rows(
    scores_TV: Tensor, noise: RowNoise | None, temperature: float, num_children: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The best tokens of each row by score / temperature + noise, [T][C], and the log-softmax of their totals."""
    (num_rows, vocab_size), device = scores_TV.shape, scores_TV.device
    count = min(num_children, vocab_size)
    ranking = Ranking(
        tokens=torch.empty(num_rows, count, dtype=torch.int32, device=device),
        log_probs=torch.empty(num_rows, count, device=device),
    )
    with on_device(device):
        rank_from_scores(
            scores_TV, draw_of(noise, temperature, device), ranking, leaders_for(scores_TV, ranks=True),
            num_children=count, vocab_size=vocab_size, overlaps=False,
        )  # fmt: skip
    return ranking.tokens.tolist(), ranking.log_probs.tolist()


def leaders_for(scores_TV: Tensor, *, ranks: bool) -> Leaders:
    num_rows, vocab_size = scores_TV.shape
    return Leaders.for_vocabulary(
        vocab_size, block=SCORE_BLOCK, max_rows=num_rows, ranks=ranks, device=str(scores_TV.device)
    )


def draw_of(noise: RowNoise | None, temperature: float, device: torch.device) -> Draw:
    """A row's noise is that of the token after its position, here of the one at it."""
    made = None
    if noise is not None:
        positions_T = torch.tensor([position - 1 for position in noise.positions], dtype=torch.int32, device=device)
        seed_mix = torch.tensor([noise.seed_mix], dtype=torch.int64, device=device)
        made = Noise(seed_mix=seed_mix, positions_T=positions_T)
    return Draw(temperature=torch.tensor([temperature], device=device), noise=made)
