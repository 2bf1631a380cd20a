"""Scores to tokens with torch's calls: argmax, or keyed sampling. The specification of what every backend samples.

Legend: T rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedRows

Noise: TypeAlias = KeyedRows | Tensor | None  # of each row: made where it is added, or [T, V], or none for greedy
TopK: TypeAlias = tuple[list[list[int]], list[list[float]]]  # token ids and log-probabilities, [T][K], likeliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The target's token after each row, and by how much it led the next one."""

    token_ids: list[int]
    margins: list[float]

    @classmethod
    def of(cls, token_ids: list[int], bests: Sequence[float], seconds: Sequence[float]) -> "Choices":
        """The tokens with the best total of each row, and the next best one.

        Raises:
            NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.
        """
        for row, best in enumerate(bests):
            if not float("-inf") < best < float("inf"):
                raise NumericalError(
                    f"the target's logits in row {row} have the maximum {best}: nothing can be chosen from them. "
                    "The checkpoint may be damaged, or its values exceed this dtype: try dtype float32"
                )
        return cls(token_ids=token_ids, margins=[best - second for best, second in zip(bests, seconds, strict=True)])


def sample(scores_TV: Tensor, noise: Noise, *, temperature: float = 1.0) -> Choices:
    """Pick argmax(score / temperature + noise) in each row; ties go to the lowest id.

    With Gumbel noise this is a draw from softmax(scores / temperature), the Gumbel-max identity, and a function of the
    scores and of the noise's key alone, so every drafter and schedule gives the same token. Without noise it is greedy.

    Raises:
        NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.

    Source: Daliri, Musco, Suresh, arXiv 2408.07978 (drafter-invariant coupling).
    """
    totals_TV = perturbed(scores_TV, noise, temperature)
    best_T2, ids_T2 = totals_TV.topk(min(2, totals_TV.shape[-1]), dim=-1)
    rows = best_T2.tolist()
    has_tie = any(row[0] == row[-1] for row in rows)  # topk names any of the tied ids, argmax the lowest
    token_ids = (totals_TV.argmax(-1) if has_tie else ids_T2[:, 0]).tolist()
    return Choices.of(token_ids, [row[0] for row in rows], [row[-1] for row in rows])


def topk(scores_TV: Tensor, noise: Noise, k: int, *, temperature: float = 1.0) -> TopK:
    """A drafter's `k` likeliest guesses of what `sample` will pick in each row.

    They are ranked by the draft's score plus the target's own noise. A guess's log-probability is that of the same
    perturbed scores: the larger the lead, the likelier that the target agrees.
    """
    totals_TV = perturbed(scores_TV, noise, temperature)
    log_probs_TK, ids_TK = totals_TV.log_softmax(-1).topk(min(k, totals_TV.shape[-1]), dim=-1)
    return ids_TK.tolist(), log_probs_TK.tolist()


def perturbed(scores_TV: Tensor, noise: Noise, temperature: float) -> Tensor:
    """score / temperature + noise; a draft's scores may be those of the first tokens only."""
    if temperature != 1.0:
        scores_TV = scores_TV / temperature
    noise_TV = noise.tensor if isinstance(noise, KeyedRows) else noise
    return scores_TV if noise_TV is None else scores_TV + noise_TV[:, : scores_TV.shape[-1]]
