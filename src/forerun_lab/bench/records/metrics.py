"""Every number of a report, computed by pure functions of records; `report.columns` explains each. Unknown values are
None, never 0.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf
from statistics import fmean, median
from typing import Final, TypeAlias

import numpy as np

from forerun_lab.bench.records.answers import Match, Record, Turn

PromptKey: TypeAlias = tuple[str, int | str]  # data set and question
SpeedOf: TypeAlias = Callable[[Record], float | None]

MAX_DEPTH: Final = 256  # larger numbers of accepted tokens in a file count as this many
SLOW: Final = 0.05  # the share of prompts or tokens that a report calls slow
CURVE_SHARES: Final = (0.0, *(step / 50 for step in range(1, 46)), *(0.9 + step / 200 for step in range(1, 20)), 1.0)


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


def delivered(turn: Turn) -> tuple[int, ...]:
    """Tokens per arrival that reached the user, without those that a stop cut off."""
    left = turn.num_new_tokens
    counts = []
    for num in turn.emitted:
        counts.append(min(num, left))
        left -= counts[-1]
    return tuple(counts)


def has_times(turn: Turn) -> bool:
    return 0 < len(turn.emitted) == len(turn.emitted_at_s)


def whole_tokens_per_s(record: Record) -> float | None:
    """New tokens over the time from the call to the last token, prefill included, summed over all turns."""
    return _ratio(sum(turn.num_new_tokens for turn in record.turns), sum(turn.wall_s for turn in record.turns))


def decode_tokens_per_s(record: Record) -> float | None:
    """Tokens after the first arrival over the time after it.

    Measured from outside, the prefill ends at the first arrival, so this is the same quantity for a drafter and for a
    peer. None if nothing arrived after it.
    """
    turns = [turn for turn in record.turns if has_times(turn)]
    num_tokens = sum(max(min(turn.num_new_tokens, sum(turn.emitted)) - turn.emitted[0], 0) for turn in turns)
    return _ratio(num_tokens, sum(turn.emitted_at_s[-1] - turn.emitted_at_s[0] for turn in turns))


def prompt_speeds(records: Iterable[Record], speed_of: SpeedOf) -> dict[PromptKey, float]:
    """Each prompt's tokens/s: the median over its repeats. Answers without tokens or times are left out."""
    speeds: dict[PromptKey, list[float]] = defaultdict(list)
    for record in records:
        if speed := speed_of(record):
            speeds[record.dataset, record.question_id].append(speed)
    return {key: median(values) for key, values in speeds.items()}


def prompt_tokens(records: Iterable[Record]) -> dict[PromptKey, int]:
    """New tokens of each prompt's answer, which are its weight in totals."""
    return {
        (record.dataset, record.question_id): sum(turn.num_new_tokens for turn in record.turns) for record in records
    }


def speed(by_prompt: Mapping[PromptKey, float]) -> MeanSpeed:
    speeds = list(by_prompt.values())
    slow = _quantiles(speeds, (SLOW,))
    return MeanSpeed(mean=fmean(speeds) if speeds else None, slow=slow[0] if slow else None)


def latency(records: Iterable[Record]) -> Latency:
    turns = [turn for turn in _turns(records) if has_times(turn)]
    arrivals = bursts(turns)
    first, slow_first = _quantiles([turn.emitted_at_s[0] for turn in turns], (0.5, 1 - SLOW)) or (None, None)
    shares = [(gap_s / num, num) for gap_s, num in arrivals if num > 0]
    p50, p95, p99 = _weighted_quantiles(shares, (0.5, 1 - SLOW, 0.99)) or (None, None, None)
    return Latency(
        first_token_s=first,
        slow_first_token_s=slow_first,
        round_s=fmean(gap_s for gap_s, _ in arrivals) if arrivals else None,
        token_p50_s=p50,
        token_p95_s=p95,
        token_p99_s=p99,
        token_curve_s=_weighted_quantiles(shares, CURVE_SHARES),
    )


def bursts(turns: Iterable[Turn]) -> list[tuple[float, int]]:
    """For each arrival after the first: seconds since the previous one, and how many tokens arrived.

    Tokens of one round arrive together and share the gap equally. If the first token got the whole gap and the others
    none, all percentiles of a good drafter below the median would be zero.
    """
    return [
        (after - before, num)
        for turn in turns
        if has_times(turn)
        for before, after, num in zip(turn.emitted_at_s, turn.emitted_at_s[1:], delivered(turn)[1:], strict=False)
    ]


def drafting(records: Iterable[Record]) -> DraftMeasures:
    """Acceptance per round. An answer that arrived all at once is left out, unless our drafter reports its rounds."""
    turns = [turn for turn in _turns(records) if turn.rounds is not None or len(turn.emitted) > 1]
    emitted = [num for turn in turns for num in turn.emitted]
    accepted = [num for turn in turns for num in (turn.rounds.num_accepted if turn.rounds else _without_bonus(turn))]
    counts = Counter(min(num, MAX_DEPTH) for num in accepted)
    rounds = [turn.rounds for turn in turns if turn.rounds is not None]
    proposals = [pair for column in rounds for pair in zip(column.num_drafted, column.num_accepted, strict=True)]
    num_drafted = sum(num for num, _ in proposals)
    hits = [was_hit for column in rounds for was_hit in column.was_hit]
    reached = _acceptance_by_depth([min(num, MAX_DEPTH) for drafted, num in proposals if drafted > 0])
    return DraftMeasures(
        num_rounds=len(emitted),
        tokens_per_round=_ratio(sum(emitted), len(emitted)),
        accepted_per_round=_ratio(sum(accepted), len(accepted)),
        drafted_per_round=_ratio(num_drafted, len(proposals)),
        acceptance_rate=_ratio(sum(num for _, num in proposals), num_drafted),
        hit_rate=_ratio(sum(hits), len(hits)) if num_drafted else None,
        accepted_counts=tuple(counts[num] for num in range(max(counts, default=-1) + 1)),
        reached=reached,
        kept=tuple(here / before for before, here in zip((1.0, *reached), reached, strict=False)),
    )


def _acceptance_by_depth(accepted: Sequence[int]) -> tuple[float, ...]:
    """P(accepted >= d) for d = 1, 2, ... up to the deepest round."""
    depths = range(1, max(accepted, default=0) + 1)
    return tuple(sum(num >= depth for num in accepted) / len(accepted) for depth in depths)


def time_shares(records: Iterable[Record]) -> TimeShares | None:
    """None if rounds or times are not known. The first round is left out, because it includes the prefill."""
    draft_s = wait_s = verify_s = decode_s = 0.0
    for turn in _turns(records):
        if turn.rounds is not None and has_times(turn) and len(turn.rounds.draft_s) == len(turn.emitted):
            draft_s += sum(turn.rounds.draft_s[1:])
            wait_s += sum(turn.rounds.wait_s[1:])
            verify_s += sum(turn.rounds.verify_s[1:])
            decode_s += turn.emitted_at_s[-1] - turn.emitted_at_s[0]
    if decode_s <= 0:
        return None
    draft = (draft_s - wait_s) / decode_s
    wait = wait_s / decode_s
    verify = verify_s / decode_s
    return TimeShares(draft=draft, wait=wait, verify=verify, other=1 - draft - wait - verify)


def one_row_verify_s(records: Iterable[Record]) -> float | None:
    """Mean time of a target pass with one row, for which the byte floor is a lower bound."""
    passes = [
        seconds
        for turn in _turns(records)
        if turn.rounds is not None
        for seconds, num_verified in zip(turn.rounds.verify_s, turn.rounds.num_verified, strict=True)
        if num_verified == 1
    ]
    return fmean(passes) if passes else None


def exactness(records: Iterable[Record]) -> Exactness | None:
    """None if nothing was compared."""
    return _counted([turn.match for turn in _turns(records) if turn.match is not None])


def kept_texts(drafted: Iterable[Record], plain: Iterable[Record]) -> Exactness | None:
    """Compare an engine's answers with those of the same engine without drafts; None if there are none.

    Answers are compared byte for byte, with the same prompt, flags and seed, as in users' reports. Source: llama.cpp
    issue 25618.
    """
    expected = {(record.dataset, record.question_id, record.repeat): record.turns for record in plain}
    return _counted(
        [
            Match(first_difference=_first_difference(turn, reference))
            for record in drafted
            if (turns := expected.get((record.dataset, record.question_id, record.repeat)))
            for turn, reference in zip(record.turns, turns, strict=True)
        ]
    )


def _first_difference(turn: Turn, reference: Turn) -> int | None:
    """Index of the first token, or character if ids are unknown, at which the texts differ."""
    pairs = zip_longest(turn.token_ids or turn.text, reference.token_ids or reference.text)
    return next((place for place, (here, there) in enumerate(pairs) if here != there), None)


def _counted(matches: Sequence[Match]) -> Exactness | None:
    num_near_tie = sum(match.first_difference is not None and match.is_near_tie for match in matches)
    firsts = [match.first_difference for match in matches if match.first_difference is not None]
    if not matches:
        return None
    return Exactness(
        num_compared=len(matches),
        num_same=len(matches) - len(firsts),
        num_near_tie=num_near_tie,
        num_different=len(firsts) - num_near_tie,
        first_difference=min(firsts, default=None),
    )


def _turns(records: Iterable[Record]) -> list[Turn]:
    return [turn for record in records for turn in record.turns]


def _without_bonus(turn: Turn) -> tuple[int, ...]:
    return tuple(max(num - 1, 0) for num in turn.emitted)


def _ratio(part: float, whole: float) -> float | None:
    """The ratio; None if it is undefined: the part is negative, no time passed, or the result overflows."""
    ratio = part / whole if part >= 0 and whole > 0 else inf
    return ratio if ratio < inf else None


def _quantiles(values: Sequence[float], shares: Sequence[float]) -> tuple[float, ...]:
    """Quantiles with linear interpolation; empty for no values."""
    return tuple(float(value) for value in np.quantile(values, shares)) if values else ()


def _weighted_quantiles(values: Sequence[tuple[float, int]], shares: Sequence[float]) -> tuple[float, ...]:
    """Quantiles of (value, weight) pairs; empty for no values."""
    if not values:
        return ()
    ordered = sorted(values)
    cumulative = np.cumsum([weight for _, weight in ordered], dtype=np.float64)
    places = np.searchsorted(cumulative, np.asarray(shares) * cumulative[-1] * (1 - 1e-12))
    return tuple(ordered[place][0] for place in places)
