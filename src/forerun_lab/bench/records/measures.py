"""The groups of numbers that a report computes from records; `report.columns` explains each.

Unknown values are None, never 0.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSpeed:
    """Tokens/s of several answers: the mean over prompts, and the 5th percentile."""

    mean: float | None
    slow: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latencies in seconds.

    Args:
        slow_first_token_s: from the call to the first token, 95th percentile over answers.
        round_s: mean time between two arrivals.
        token_p50_s, token_p95_s, token_p99_s: percentiles over tokens; a token's time is its burst's time divided by
            the burst's tokens.
        token_curve_s: quantiles of that time at each of CURVE_SHARES, for a plot of the distribution.
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
    """Acceptance per round; `accepted` does not count the bonus token.

    Args:
        num_rounds: rounds whose number of tokens is known.
        accepted_counts: rounds in which 0, 1, 2, ... drafted tokens were accepted.
        reached: share of the rounds with a proposal in which at least 1, 2, ... drafted tokens were accepted.
        kept: the same share, among the rounds that accepted at least one token less.
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
    """Shares of the time between the first and the last arrival, which sum to 1; `draft` does not include `wait`."""

    draft: float
    wait: float
    verify: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """How many answers equal those of decoding without drafts, differ first at a near-tie, or differ elsewhere.

    For one of our drafters the last is an error. For other engines near-ties are not known.
    """

    num_compared: int
    num_same: int
    num_near_tie: int
    num_different: int
    first_difference: int | None
