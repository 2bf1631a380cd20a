"""The groups of numbers a report gives for some records. What cannot be known is None, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of several answers, taken together in two ways.

    Args:
        mean: mean over prompts of a prompt's tokens/s (the median over its repeats); the way speeds are published.
        slow: the tokens/s that the slowest 5 % of prompts do not exceed.
    """

    mean: float | None
    slow: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds until something came.

    Args:
        first_token_s: from the call to the first token; median over answers.
        slow_first_token_s: the same for the slowest 5 % of answers, at least.
        round_s: mean time between two arrivals, however many tokens came together; the first arrival is left out.
        token_p50_s, token_p95_s, token_p99_s: a token's share of the time its burst took, over tokens; the slowest 5 %
            of tokens took token_p95_s or more.
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
class Drafting:
    """What a round brought.

    Args:
        num_rounds: rounds whose number of tokens is known.
        tokens_per_round: with the bonus token; 1 is plain decoding.
        accepted_per_round: without the bonus token.
        drafted_per_round: tokens proposed; None where it is not known.
        acceptance_rate: tokens accepted over tokens proposed; a tree's siblings can never all be accepted.
        hit_rate: share of rounds whose bonus token was a node of the drafter's own tree, outside the proposal.
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
    """Where the time between the first and the last arrival went: parts that sum to 1.

    `draft` is without `wait`, in which the target's process waited for a drafter elsewhere.
    """

    draft: float
    wait: float
    verify: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """How many answers are token for token those of drafter `none`, and why the others are not.

    Args:
        num_near_tie: answers that part where `none`'s lead was so small that rounding decides.
        num_different: answers that part anywhere else; for an exact drafter there must be none.
        first_difference: index of the earliest differing token over these answers; None where all are the same.
    """

    num_compared: int
    num_same: int
    num_near_tie: int
    num_different: int
    first_difference: int | None
