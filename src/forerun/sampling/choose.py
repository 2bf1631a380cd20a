"""Scores to token: argmax, or keyed sampling.

Legend: T rows, V vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor

from forerun.core.errors import NumericalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The target's token after each row, and by how much it led the next one."""

    token_ids: list[int]
    margins: list[float]


def choose(scores_TV: Tensor, noise_TV: Tensor | None) -> Choices:
    """Pick argmax(score + noise) in each row; ties go to the lowest id.

    With Gumbel noise this is a draw from softmax(scores), the Gumbel-max identity, and a function of the scores
    and of the noise's key alone, so every drafter and schedule gives the same token. Without noise it is greedy.

    Raises:
        NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.

    Source: Daliri, Musco, Suresh, arXiv 2408.07978 (drafter-invariant coupling).
    """
    totals_TV = scores_TV if noise_TV is None else scores_TV + noise_TV
    leaders_T2, ids_T2 = totals_TV.topk(min(2, totals_TV.shape[-1]), dim=-1)
    rows = leaders_T2.tolist()
    for number, leaders in enumerate(rows):
        if not float("-inf") < leaders[0] < float("inf"):
            raise NumericalError(
                f"the target's logits in row {number} have the maximum {leaders[0]}: nothing can be chosen from them. "
                "The checkpoint may be damaged, or its values exceed this dtype: try dtype float32"
            )
    margins = [row[0] - row[-1] for row in rows]
    has_tie = 0.0 in margins  # topk names any of the tied ids, argmax the lowest
    token_ids = totals_TV.argmax(-1) if has_tie else ids_T2[:, 0]
    return Choices(token_ids=token_ids.tolist(), margins=margins)


def rank_children(
    scores_TV: Tensor, noise_TV: Tensor | None, num_children: int
) -> tuple[list[list[int]], list[list[float]]]:
    """A drafter's likeliest guesses of what `choose` will pick in each row.

    Children are ranked by the draft's score plus the target's own noise. A child's log-probability is that of the same
    perturbed scores: the larger the lead, the likelier that the target agrees.

    Returns:
        token ids and log-probabilities, [T][num_children], likeliest first.
    """
    totals_TV = scores_TV if noise_TV is None else scores_TV + noise_TV
    log_probs_TC, ids_TC = totals_TV.log_softmax(-1).topk(min(num_children, totals_TV.shape[-1]), dim=-1)
    return ids_TC.tolist(), log_probs_TC.tolist()
