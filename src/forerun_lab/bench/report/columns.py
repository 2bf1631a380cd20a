"""The columns of every table with their meanings, and the formatting of numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forerun_lab.bench.report.bootstrap import Estimate
from forerun_lab.bench.report.summary import Row

UNKNOWN: Final = "\N{EN DASH}"
TO: Final = "\N{EN DASH}"
TIMES: Final = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number of a row as text.

    Args:
        is_main: whether it is in the short tables too.
    """

    title: str
    meaning: str
    cell: Callable[[Row], str]
    is_main: bool = False


def speed(value: float | None) -> str:
    """Tokens/s, or another number, with three digits, but at most two after the point."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float | None) -> str:
    return speed(None if seconds is None else 1e3 * seconds)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def times(estimate: Estimate | None) -> str:
    """A ratio, as in 1.84 times."""
    return UNKNOWN if estimate is None else f"{estimate.value:.2f}{TIMES}"


def interval(estimate: Estimate | None, digits: int = 2) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return UNKNOWN
    return f"{estimate.low:.{digits}f}{TO}{estimate.high:.{digits}f}"


def ratio(estimate: Estimate | None) -> str:
    """A ratio, with its interval if there is one."""
    around = interval(estimate)
    return times(estimate) if around == UNKNOWN else f"{times(estimate)} ({around})"


def same_text(row: Row) -> str:
    """How many texts are the same, and how many differ although there is no near-tie."""
    found = row.exactness
    if found is None:
        return UNKNOWN
    text = f"{found.num_same}/{found.num_compared}"
    return f"{text}, {found.num_different} differ" if found.num_different else text


def kept_text(row: Row) -> str:
    """How many texts are the same with drafting, and the index of the earliest difference."""
    found = row.kept_texts
    if found is None:
        return UNKNOWN
    text = f"{found.num_same}/{found.num_compared}"
    return text if found.first_difference is None else f"{text} ({found.first_difference})"


def near_ties(row: Row) -> str:
    return UNKNOWN if row.exactness is None else str(row.exactness.num_near_tie)


def time_parts(row: Row) -> str:
    if row.shares is None:
        return UNKNOWN
    parts = row.shares.draft, row.shares.wait, row.shares.verify, row.shares.other
    return " / ".join(f"{100 * part:.0f}" for part in parts)


def first_difference(row: Row) -> str:
    found = row.exactness.first_difference if row.exactness else None
    return UNKNOWN if found is None else str(found)


COLUMNS: Final = (
    Column(
        title="tokens/s",
        meaning="all new tokens over all the time they took, each prompt at the median over its repeats. Decoding "
        "alone (tokens after the first arrival over the time after it), unless the arrival times of a contestant are "
        "unknown: then all include the prefill",
        cell=lambda row: speed(row.speed.value if row.speed else None),
        is_main=True,
    ),
    Column(
        title=f"{TIMES} baseline",
        meaning="the time that the baseline would have taken for these tokens over the time they took; in brackets the "
        "95 % interval of a paired bootstrap over prompts, left out for fewer than five prompts",
        cell=lambda row: ratio(row.ratio),
        is_main=True,
    ),
    Column(
        title=f"mean {TIMES}",
        meaning="mean over prompts of tokens/s over the baseline's mean, as speed-ups are mostly published: one prompt "
        "whose text repeats itself can carry the others",
        cell=lambda row: times(row.mean_ratio),
    ),
    Column(
        title="slow 5 %",
        meaning="the 5th percentile over prompts of tokens/s",
        cell=lambda row: speed(row.slow_tokens_per_s),
        is_main=True,
    ),
    Column(
        title="mean tokens/s",
        meaning="mean over prompts of each prompt's tokens/s, decoding alone",
        cell=lambda row: speed(row.decode.mean),
    ),
    Column(
        title="with prefill",
        meaning="tokens/s with the prefill: new tokens over the time from call to last token; mean over prompts",
        cell=lambda row: speed(row.whole.mean),
    ),
    Column(
        title="first ms",
        meaning="milliseconds from the call to the first token: median over answers",
        cell=lambda row: milliseconds(row.latency.first_token_s),
        is_main=True,
    ),
    Column(
        title="p50 ms",
        meaning="milliseconds per token, median over tokens. Tokens of one round come together: each counts with the "
        "gap before its burst over the tokens of the burst",
        cell=lambda row: milliseconds(row.latency.token_p50_s),
    ),
    Column(
        title="p95 ms",
        meaning="milliseconds per token that the slowest 5 % of tokens take at least",
        cell=lambda row: milliseconds(row.latency.token_p95_s),
        is_main=True,
    ),
    Column(
        title="p99 ms",
        meaning="milliseconds per token that the slowest 1 % of tokens take at least",
        cell=lambda row: milliseconds(row.latency.token_p99_s),
    ),
    Column(
        title="round ms",
        meaning="mean milliseconds between two arrivals, whatever the number of tokens",
        cell=lambda row: milliseconds(row.latency.round_s),
    ),
    Column(
        title="tok/round",
        meaning="tokens per round with the bonus token; 1.00 is plain decoding",
        cell=lambda row: number(row.drafting.tokens_per_round),
        is_main=True,
    ),
    Column(
        title="accepted",
        meaning="drafted tokens accepted per round, the bonus token not counted",
        cell=lambda row: number(row.drafting.accepted_per_round),
    ),
    Column(
        title="of drafted",
        meaning="accepted tokens divided by proposed tokens; siblings in a tree can never all be accepted",
        cell=lambda row: share(row.drafting.acceptance_rate),
    ),
    Column(
        title="hits",
        meaning="rounds whose bonus token was a node of the drafter's own tree, outside the proposal",
        cell=lambda row: share(row.drafting.hit_rate),
    ),
    Column(
        title="draft / wait / verify / other %",
        meaning="shares of the time between first and last arrival; draft is without wait, in which the target's "
        "process waited for a drafter elsewhere",
        cell=time_parts,
    ),
    Column(
        title="of floor",
        meaning="the byte floor (bytes a step must read over the measured read bandwidth) over the mean time of a "
        "one-row pass: 100 % would be a pass that only reads",
        cell=lambda row: share(row.floor_share),
    ),
    Column(
        title="floor ms/token",
        meaning="the byte floor over tokens per round: milliseconds per token if drafting cost nothing and kernels "
        "only read",
        cell=lambda row: milliseconds(row.floor_token_s),
    ),
    Column(
        title="same text",
        meaning="answers that are token for token those of drafter none, of all compared; then how many differ for "
        "another reason than a near-tie",
        cell=same_text,
        is_main=True,
    ),
    Column(
        title="kept text",
        meaning="answers that are byte for byte those of the same engine without drafts, with the same seed, of all "
        "compared; in brackets the index of the first token at which any differs. An engine with a ratio test promises "
        "this for greedy decoding only",
        cell=kept_text,
        is_main=True,
    ),
    Column(
        title="near-ties",
        meaning="answers that first differ from those of drafter none where rounding decides, as its lead was so small",
        cell=near_ties,
    ),
    Column(
        title="first difference",
        meaning="index of the earliest token at which an answer differs from that of drafter none",
        cell=first_difference,
    ),
)
MAIN_COLUMNS: Final = tuple(column for column in COLUMNS if column.is_main)
