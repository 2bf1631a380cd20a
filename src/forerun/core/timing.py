"""Time spans of the work of target and drafter, on one clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A time span of work. Times are `time.perf_counter` seconds, the same clock for all processes of a host.

    lane: "target" or "draft", or "wait" while the target waits for the drafter and has nothing to verify.
    label: a word or two for a plot, such as rows, accepted tokens, "hit" or "miss".

    Positional arguments are allowed, because several spans are built in every round.
    """

    lane: str
    start_s: float
    end_s: float
    label: str = ""
