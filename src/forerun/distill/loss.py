"""How far a draft is from its target, by what counts: the chance that a guess is accepted.

Legend: N rows to learn from, K the target's tokens kept of a row, W the draft's vocabulary.
"""

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from forerun.model.vocabulary_map import VocabularyMap

MATURE: Final = 0.4  # share of the training after which overlap counts: its gradient is weak while guesses are far off
SURPRISE_WEIGHT: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """What the target said of some rows.

    Args:
        chances_NK: float32, its chances of its likeliest tokens; 0 for those that the draft does not have.
        columns_NK: int64, the draft's ids of these tokens.
    """

    chances_NK: Tensor
    columns_NK: Tensor

    @classmethod
    def of(cls, top_ids_NK: Tensor, top_log_probs_NK: Tensor, vocabulary: VocabularyMap) -> "Lesson":
        ids_NK = top_ids_NK.long()
        chances_NK = top_log_probs_NK.float().exp() * vocabulary.is_known[ids_NK]
        return cls(chances_NK=chances_NK, columns_NK=vocabulary.draft_ids[ids_NK].long())


def cross_entropy(log_probs_NW: Tensor, lesson: Lesson) -> Tensor:
    """Nats of each row, [N]: the target's chances against the draft's log-probabilities."""
    return -(lesson.chances_NK * log_probs_NW.gather(1, lesson.columns_NK)).sum(1)


def overlap(log_probs_NW: Tensor, lesson: Lesson) -> Tensor:
    """Chance of each row [N] that one sampled guess is accepted: 1 minus the total variation (arXiv 2211.17192)."""
    return lesson.chances_NK.minimum(log_probs_NW.gather(1, lesson.columns_NK).exp()).sum(1)


def is_among(log_probs_NW: Tensor, lesson: Lesson, num_guesses: int) -> Tensor:
    """bool [N]: the target's likeliest token is among the draft's likeliest ones."""
    guesses = log_probs_NW.topk(min(num_guesses, log_probs_NW.shape[1])).indices
    return ((guesses == lesson.columns_NK[:, :1]) & (lesson.chances_NK[:, :1] > 0)).any(1)


def objective(surprise_N: Tensor, overlap_N: Tensor, progress: float) -> Tensor:
    """What is made small: cross entropy, and from `MATURE` of the training on mostly the chance of a rejection.

    Measured with the draft of SmolLM2 on texts new to it, 75 steps: cross entropy alone brought as many right first
    guesses and 2 points less overlap, overlap alone a point more overlap and a point fewer right first guesses.
    """
    return (surprise_N if progress < MATURE else SURPRISE_WEIGHT * surprise_N + 1.0 - overlap_N).mean()
