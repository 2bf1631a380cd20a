"""The groups of numbers a report gives for some records; `report.columns` says what each means.

What cannot be known is None, never 0.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSpeed:
    """Tokens/s of several answers: the mean over prompts, and what the slowest 5 % of prompts do not exceed."""

    mean: float | None
    slow: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds until something came.

    Args:
        slow_first_token_s: from the call to the first token for the slowest 5 % of answers, at least.
        round_s: mean time between two arrivals.
        token_p50_s, token_p95_s, token_p99_s: a token's share of the time its burst took, over tokens.
        token_curve_s: that share at each of CURVE_SHARES, for a picture of the distribution.
    """

    first_token_s: float | None
    slow_first_token_s: float | None
    round_s: float | None
    token_p50_s: float | None
    token_p95_s: float | None
    token_p99_s: float | None
    token_curve_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMeasures:
    """What a round brought; `accepted` leaves out the bonus token.

    Args:
        num_rounds: rounds whose number of tokens is known.
        accepted_counts: rounds in which 0, 1, 2, ... drafted tokens were accepted.
        reached: share of the rounds with a proposal in which at least 1, 2, ... drafted tokens were accepted.
        kept: the same among the rounds that had accepted one token less.
    """

    num_rounds: int
    tokens_per_round: float | None
    accepted_per_round: float | None
    drafted_per_round: float | None
    acceptance_rate: float | None
    hit_rate: float | None
    accepted_counts: tuple[int, ...]
    reached: tuple[float, ...]
    kept: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the time between the first and the last arrival went: parts that sum to 1; `draft` is without `wait`."""

    draft: float
    wait: float
    verify: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """How many answers are those of decoding without drafts, part at a near-tie, or part anywhere else.

    In one of our drafters the last is an error. How near a tie of other engines was is not known.
    """

    num_compared: int
    num_same: int
    num_near_tie: int
    num_different: int
    first_difference: int | None
