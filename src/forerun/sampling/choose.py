"""Scores to token: argmax, or keyed sampling.

Legend: T rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import numpy as np
from torch import Tensor

from forerun.backends.choose import device_sampler
from forerun.backends.cpu.sampler import MOST_CHILDREN, NoiseKeys, can_sample, choose_rows, rank_rows
from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedRows

Noise: TypeAlias = KeyedRows | Tensor | None  # of each row: made where it is added, or [T, V], or none for greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The target's token after each row, and by how much it led the next one."""

    token_ids: list[int]
    margins: list[float]


def choose(scores_TV: Tensor, noise: Noise, *, temperature: float = 1.0) -> Choices:
    """Pick argmax(score / temperature + noise) in each row; ties go to the lowest id.

    With Gumbel noise this is a draw from softmax(scores / temperature), the Gumbel-max identity, and a function of the
    scores and of the noise's key alone, so every drafter and schedule gives the same token. Without noise it is greedy.

    Raises:
        NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.

    Source: Daliri, Musco, Suresh, arXiv 2408.07978 (drafter-invariant coupling).
    """
    if can_sample(scores_TV) and not isinstance(noise, Tensor):
        token_ids, bests, seconds = choose_rows(scores_TV, keys_of(noise, len(scores_TV)), temperature)
        check_leaders(bests)
        return Choices(token_ids=token_ids, margins=margins_of(bests, seconds))
    if not isinstance(noise, Tensor) and (sampler := device_sampler(scores_TV)) is not None:
        token_ids, bests, seconds = sampler.choose_rows(scores_TV, row_noise(sampler, noise), temperature)
        check_leaders(bests)
        return Choices(token_ids=token_ids, margins=margins_of(bests, seconds))
    totals_TV = perturbed(scores_TV, noise, temperature)
    leaders_T2, ids_T2 = totals_TV.topk(min(2, totals_TV.shape[-1]), dim=-1)
    rows = leaders_T2.tolist()
    check_leaders([row[0] for row in rows])
    margins = [row[0] - row[-1] for row in rows]
    has_tie = 0.0 in margins  # topk names any of the tied ids, argmax the lowest
    token_ids = (totals_TV.argmax(-1) if has_tie else ids_T2[:, 0]).tolist()
    return Choices(token_ids=token_ids, margins=margins)


def rank_children(
    scores_TV: Tensor, noise: Noise, num_children: int, *, temperature: float = 1.0
) -> tuple[list[list[int]], list[list[float]]]:
    """A drafter's likeliest guesses of what `choose` will pick in each row.

    Children are ranked by the draft's score plus the target's own noise. A child's log-probability is that of the same
    perturbed scores: the larger the lead, the likelier that the target agrees.

    Returns:
        token ids and log-probabilities, [T][num_children], likeliest first.
    """
    if num_children <= MOST_CHILDREN and can_sample(scores_TV) and not isinstance(noise, Tensor):
        return rank_rows(scores_TV, keys_of(noise, len(scores_TV)), temperature, num_children)
    if not isinstance(noise, Tensor):
        sampler = device_sampler(scores_TV)
        if sampler is not None and num_children <= sampler.MOST_CHILDREN:
            return sampler.rank_rows(scores_TV, row_noise(sampler, noise), temperature, num_children)  # type: ignore[no-any-return]
    totals_TV = perturbed(scores_TV, noise, temperature)
    log_probs_TC, ids_TC = totals_TV.log_softmax(-1).topk(min(num_children, totals_TV.shape[-1]), dim=-1)
    return ids_TC.tolist(), log_probs_TC.tolist()


def perturbed(scores_TV: Tensor, noise: Noise, temperature: float) -> Tensor:
    """score / temperature + noise; a draft's scores may be those of the first tokens only."""
    if temperature != 1.0:
        scores_TV = scores_TV / temperature
    noise_TV = noise.tensor if isinstance(noise, KeyedRows) else noise
    return scores_TV if noise_TV is None else scores_TV + noise_TV[:, : scores_TV.shape[-1]]


def keys_of(noise: KeyedRows | None, num_rows: int) -> NoiseKeys:
    return np.zeros((num_rows, 3), np.int32) if noise is None else noise.keys


def row_noise(sampler: ModuleType, noise: KeyedRows | None) -> object:
    """The same for a GPU's sampler."""
    return None if noise is None else sampler.RowNoise(seed_mix=noise.seed_mix, positions=noise.positions)


def margins_of(bests: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [best - second for best, second in zip(bests, seconds, strict=True)]


def check_leaders(bests: Sequence[float]) -> None:
    """Refuse rows from which nothing can be chosen."""
    for number, best in enumerate(bests):
        if not float("-inf") < best < float("inf"):
            raise NumericalError(
                f"the target's logits in row {number} have the maximum {best}: nothing can be chosen from them. "
                "The checkpoint may be damaged, or its values exceed this dtype: try dtype float32"
            )
