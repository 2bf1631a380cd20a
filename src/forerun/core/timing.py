"""Spans of work of target and drafter, on one clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of work. Times are `time.perf_counter` seconds, the same clock for all processes of a host.

    lane: "target" or "draft", or "wait": time in which the target waited for the drafter and had nothing to verify.
    label: a word or two for a plot, such as rows, accepted tokens, "hit" or "miss".

    May be built by position, for it is built several times a round.
    """

    lane: str
    start_s: float
    end_s: float
    label: str = ""
