"""Counts and times of a simulated answer, round by round."""

from typing import Final

from forerun.engine.trace import AnswerTrace
from forerun.planner.outcome import AnswerOutcome
from forerun.planner.trace_grower import TraceGrower
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk

UNKNOWN: Final = 0  # stands for the tokens after the end of an answer


class Tally:
    """Counts and times of the text so far."""

    def __init__(self, trace: AnswerTrace) -> None:
        self._token_ids = trace.token_ids
        self.num_tokens = self._num_rounds = self._num_accepted = self._num_misses = 0
        self._num_rows = self._num_late = self._num_bare = 0
        self._pass_s = self._miss_wait_s = self._hit_wait_s = 0.0
        self._is_after_miss = True  # there is no tree before the first answer

    @property
    def is_over(self) -> bool:
        return self.num_tokens >= len(self._token_ids)

    def wait(self, seconds: float, *, is_answered: bool) -> None:
        """Record the wait for a parallel drafter's proposal."""
        self._num_late += not is_answered
        if self._is_after_miss:
            self._miss_wait_s += seconds
        else:
            self._hit_wait_s += seconds

    def verify(self, tree: TokenTree, pass_s: float) -> Acceptance:
        """The tokens of this tree that the target accepts, after a pass of `pass_s` seconds."""
        rest = (*self._token_ids[self.num_tokens :], *[UNKNOWN] * (max(tree.depths) + 1))
        self._num_rows += len(tree)
        self._num_bare += len(tree) == 1
        self._pass_s += pass_s
        return walk(tree, [rest[depth] for depth in tree.depths])

    def add(self, acceptance: Acceptance, *, is_hit: bool) -> None:
        num_left = len(self._token_ids) - self.num_tokens
        self._num_rounds += 1
        self._num_accepted += min(len(acceptance.path), num_left)
        self.num_tokens += min(len(acceptance.tokens), num_left)
        self._num_misses += not is_hit and not self.is_over  # after the end the next token is not known
        self._is_after_miss = not is_hit

    def outcome(self, grower: TraceGrower, *, decode_s: float) -> AnswerOutcome:
        return AnswerOutcome(
            num_tokens=self.num_tokens,
            num_rounds=self._num_rounds,
            num_accepted=self._num_accepted,
            num_misses=self._num_misses,
            num_expansions=grower.num_expansions,
            decode_s=decode_s,
            num_rows=self._num_rows,
            num_useful=grower.num_useful,
            num_levels=grower.num_levels,
            num_late=self._num_late,
            num_bare=self._num_bare,
            pass_s=self._pass_s,
            miss_wait_s=self._miss_wait_s,
            hit_wait_s=self._hit_wait_s,
        )
