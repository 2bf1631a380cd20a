"""The outcome of a simulation, counted round by round, with a confidence interval."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk
from forerun_lab.planner.trace import AnswerTrace

UNKNOWN: Final = 0  # stands for the tokens after the end of an answer
NUM_RESAMPLES: Final = 400
CONFIDENCE: Final = 0.95


@dataclass(slots=True, kw_only=True)
class AnswerOutcome:
    """The outcome of one answer; a simulation counts in it round by round.

    Args:
        num_tokens: tokens of the answer.
        num_rounds: rounds of the answer.
        num_accepted: drafted tokens that were accepted; tokens beyond the answer's end are not counted.
        num_misses: rounds whose bonus token was not in the drafter's tree.
        num_expansions: draft passes that belong to these rounds.
        decode_s: time from the end of the prefill.
        num_rows: rows that the target verified, roots included.
        num_useful: draft passes that added tokens of the text to the tree.
        num_late: rounds that began without the parallel drafter's answer to the previous verdict: with the rest of an
            earlier tree, or after a miss with no tree.
        pass_s: the part of decode_s spent in the target's passes.
        miss_wait_s: the part in which the target waited for a tree after a miss.
        hit_wait_s: the part in which the target had a tree and waited for a better one.
    """

    num_tokens: int = 0
    num_rounds: int = 0
    num_accepted: int = 0
    num_misses: int = 0
    num_expansions: int = 0
    decode_s: float = 0.0
    num_rows: int = 0
    num_useful: int = 0
    num_late: int = 0
    pass_s: float = 0.0
    miss_wait_s: float = 0.0
    hit_wait_s: float = 0.0


class Tally:
    """The text so far of a simulated answer, with its counts and times."""

    def __init__(self, trace: AnswerTrace) -> None:
        self._token_ids = trace.token_ids
        self.outcome = AnswerOutcome()
        self._is_after_miss = True  # there is no tree before the first answer

    @property
    def num_left(self) -> int:
        """Tokens that the answer still lacks."""
        return len(self._token_ids) - self.outcome.num_tokens

    def wait(self, seconds: float, *, is_answered: bool) -> None:
        """Record the wait for a parallel drafter's proposal."""
        self.outcome.num_late += not is_answered
        if self._is_after_miss:
            self.outcome.miss_wait_s += seconds
        else:
            self.outcome.hit_wait_s += seconds

    def verify(self, tree: TokenTree, pass_s: float) -> Acceptance:
        """The tokens of this tree that the target accepts, after a pass of `pass_s` seconds."""
        rest = (*self._token_ids[self.outcome.num_tokens :], *[UNKNOWN] * (max(tree.depths) + 1))
        self.outcome.num_rows += len(tree)
        self.outcome.pass_s += pass_s
        return walk(tree, [rest[depth] for depth in tree.depths])

    def add(self, acceptance: Acceptance, *, is_hit: bool) -> None:
        num_left = self.num_left
        self.outcome.num_rounds += 1
        self.outcome.num_accepted += min(len(acceptance.path), num_left)
        self.outcome.num_tokens += min(len(acceptance.tokens), num_left)
        self.outcome.num_misses += not is_hit and self.num_left > 0  # after the end the next token is not known
        self._is_after_miss = not is_hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of all answers together."""

    answers: tuple[AnswerOutcome, ...]

    @property
    def tokens_per_s(self) -> float:
        return speed(self.answers)

    @property
    def tokens_per_round(self) -> float:
        return self.per_round("num_tokens")

    @property
    def accepted_per_round(self) -> float:
        """Drafted tokens accepted per round, without the bonus token."""
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
        """Verified rows per round that gave no token; each useful row, also the root, gives one token."""
        return self.per_round("num_rows") - self.tokens_per_round

    @property
    def useless_expansions(self) -> float:
        """Share of the draft passes that added no token of the text to the tree."""
        return 1.0 - self._total("num_useful") / max(self._total("num_expansions"), 1.0)

    @property
    def overhead_s(self) -> float:
        """Time per round that is neither the target's pass nor a wait; not for serial drafters."""
        return self.round_s - sum(map(self.per_round, ("pass_s", "miss_wait_s", "hit_wait_s")))

    def per_round(self, name: str) -> float:
        """The mean over all rounds of the field `name` of `AnswerOutcome`."""
        return self._total(name) / self._total("num_rounds")

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """A confidence interval of the tokens/s, by bootstrap over the answers.

        With one answer both ends are its speed.
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
