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
        num_rows: rows that the target verified, roots included.
        num_useful: draft passes that put tokens of the text into the tree.
        num_levels: tokens of the text that they put there.
        num_late: rounds that began without the parallel drafter's answer to the verdict before: with the rest of an
            earlier tree, or after a miss with none.
        num_bare: rounds that verified nothing but the root.
        pass_s: the part of decode_s that was the target's passes.
        miss_wait_s: the part in which the target waited for the tree after a miss.
        hit_wait_s: the part in which it waited although it had a tree, for a better one.
    """

    num_tokens: int
    num_rounds: int
    num_accepted: int
    num_misses: int
    num_expansions: int
    decode_s: float
    num_rows: int = 0
    num_useful: int = 0
    num_levels: int = 0
    num_late: int = 0
    num_bare: int = 0
    pass_s: float = 0.0
    miss_wait_s: float = 0.0
    hit_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All answers together."""

    answers: tuple[AnswerOutcome, ...]

    @property
    def tokens_per_s(self) -> float:
        return speed(self.answers)

    @property
    def tokens_per_round(self) -> float:
        return self.per_round("num_tokens")

    @property
    def accepted_per_round(self) -> float:
        """Without the bonus token."""
        return self.per_round("num_accepted")

    @property
    def round_s(self) -> float:
        return self.per_round("decode_s")

    @property
    def miss_rate(self) -> float:
        return self.per_round("num_misses")

    @property
    def expansions_per_round(self) -> float:
        return self.per_round("num_expansions")

    @property
    def wasted_rows_per_round(self) -> float:
        """Verified rows that gave no token: a row that does gives one, the root's included."""
        return self.per_round("num_rows") - self.tokens_per_round

    @property
    def useless_expansions(self) -> float:
        """Share of the draft passes that put no token of the text into the tree."""
        return 1.0 - self._total("num_useful") / max(self._total("num_expansions"), 1.0)

    @property
    def levels_per_useful_expansion(self) -> float:
        """Tokens of the text that each of the other draft passes put there."""
        return self._total("num_levels") / max(self._total("num_useful"), 1.0)

    @property
    def overhead_s(self) -> float:
        """Of a round with a parallel drafter, or without one: what is neither the target's pass nor a wait."""
        return self.round_s - sum(map(self.per_round, ("pass_s", "miss_wait_s", "hit_wait_s")))

    def per_round(self, name: str) -> float:
        """The mean over all rounds of a number of `AnswerOutcome`."""
        return self._total(name) / self._total("num_rounds")

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
