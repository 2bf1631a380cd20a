"""What a simulation found, and how sure one can be of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NUM_RESAMPLES: Final = 400
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOutcome:
    """One answer.

    Args:
        num_tokens: tokens of the answer.
        num_rounds: rounds they took.
        num_accepted: drafted tokens that were accepted; tokens beyond the answer's end are left out.
        num_misses: rounds whose bonus token was nowhere in the drafter's tree.
        num_expansions: draft passes, as far as the round had to do with them.
        decode_s: time from the end of the prefill.
    """

    num_tokens: int
    num_rounds: int
    num_accepted: int
    num_misses: int
    num_expansions: int
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All answers together."""

    answers: tuple[AnswerOutcome, ...]

    @property
    def tokens_per_s(self) -> float:
        return speed(self.answers)

    @property
    def tokens_per_round(self) -> float:
        return self._total("num_tokens") / self._total("num_rounds")

    @property
    def accepted_per_round(self) -> float:
        """Without the bonus token."""
        return self._total("num_accepted") / self._total("num_rounds")

    @property
    def round_s(self) -> float:
        return self._total("decode_s") / self._total("num_rounds")

    @property
    def miss_rate(self) -> float:
        return self._total("num_misses") / self._total("num_rounds")

    @property
    def expansions_per_round(self) -> float:
        return self._total("num_expansions") / self._total("num_rounds")

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Where the tokens/s of other answers of this kind would lie: by bootstrap over the answers.

        With one answer there is no estimate: both ends are its speed.
        """
        rng = random.Random(0)
        speeds = sorted(speed(rng.choices(self.answers, k=len(self.answers))) for _ in range(NUM_RESAMPLES))
        tail = int((1.0 - confidence) / 2 * NUM_RESAMPLES)
        return speeds[tail], speeds[-1 - tail]

    def _total(self, name: str) -> float:
        return float(sum(getattr(answer, name) for answer in self.answers))


def speed(answers: Sequence[AnswerOutcome]) -> float:
    """Tokens/s over all answers: their tokens over their time."""
    return sum(answer.num_tokens for answer in answers) / sum(answer.decode_s for answer in answers)
