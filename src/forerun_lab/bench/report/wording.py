"""The sentences of a report: the fastest contestant, the comparison of texts, and the circumstances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun_lab.bench.report.bootstrap import MIN_PROMPTS
from forerun_lab.bench.report.columns import TIMES, interval, speed, times
from forerun_lab.bench.report.summary import NONE, Row, Summary

MACHINE_LABELS: Final = {"cpu": "CPU", "gpu": "GPU", "isa": "ISA", "os": "OS", "python": "Python"}
GIB: Final = 1 << 30
ALL: Final = "all data sets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The result in one sentence, and the row it describes."""

    text: str
    detail: str
    row: Row | None


def headline(summary: Summary) -> Headline:
    """The fastest drafter over all data sets at the lowest temperature, compared with the baseline.

    A gain is named only if its whole interval is above 1 and drafted tokens were accepted.
    """
    rows = _first_ranking(summary)
    candidates = [row for row in rows if row.contestant != summary.baseline]
    ours = [row for row in candidates if summary.kind_of(row.contestant) != "peer"] or candidates
    if not ours:
        text = "One contestant, nothing to compare with" if rows else "No answers yet"
        return Headline(text=text, detail=_detail(summary, rows[0]) if rows else "", row=rows[0] if rows else None)
    versus = "plain decoding" if summary.baseline == NONE else str(summary.baseline)
    best = next((row for row in ours if row.is_gain), fastest(ours) or ours[0])
    if best.ratio is None:
        value = speed(best.speed.value if best.speed else None)
        text = f"{best.contestant}: {value} tokens/s"
    elif best.is_gain:
        text = f"{best.contestant} writes {times(best.ratio)} as fast as {versus}"
    elif all(row.is_idle for row in ours):
        text = f"No drafted token was accepted, so nothing is faster than {versus}"
    elif best.ratio.low is None:
        text = f"Too few prompts to say what is faster than {versus}: at least {MIN_PROMPTS} are needed"
    else:
        text = f"Nothing is faster than {versus} beyond noise"
    return Headline(text=text, detail=_detail(summary, best), row=best)


def fastest_peer(summary: Summary) -> Row | None:
    """The fastest peer over all data sets at the lowest temperature."""
    return next((row for row in _first_ranking(summary) if summary.kind_of(row.contestant) == "peer"), None)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows, fastest first; those of unknown speed are last."""
    return sorted(rows, key=lambda row: row.speed.value if row.speed else 0.0, reverse=True)


def fastest(rows: Sequence[Row]) -> Row | None:
    """The row with the highest tokens/s, except those whose lead is noise because they accepted nothing; None if no
    speed is known.
    """
    return next((row for row in ranked(rows) if row.speed and not row.is_idle), None)


def sampling(temperature: float) -> str:
    """How tokens are chosen, in words."""
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def verdict_on_texts(summary: Summary) -> str:
    """Whether the texts of our drafters equal those of `none`, over all comparisons."""
    rows = [
        row.exactness
        for row in summary.rows
        if row.dataset is None
        and row.exactness
        and row.contestant != NONE
        and summary.kind_of(row.contestant) != "peer"
    ]
    compared = sum(row.num_compared for row in rows)
    same = sum(row.num_same for row in rows)
    near = sum(row.num_near_tie for row in rows)
    different = sum(row.num_different for row in rows)
    if not compared:
        return "No texts were compared."
    text = f"{same} of {compared} texts of the drafters equal those of drafter none token for token"
    if different:
        return f"{text}; {near} differ at a near-tie and {different} for another reason: that is an error."
    return f"{text}; {near} differ at a near-tie, where rounding decides." if near else f"{text}."


def circumstances(summary: Summary) -> list[tuple[str, str]]:
    """The circumstances of the run: model, machine, versions and command, as far as they are recorded."""
    about = summary.about
    plan = about.get("plan", {})
    found: list[tuple[str, Any]] = [
        ("target", about.get("target")),
        ("draft", about.get("draft")),
        ("dtype", about.get("dtype")),
        ("device", plan.get("device")),
        ("threads", plan.get("num_threads")),
        ("exactness", plan.get("exactness")),
        ("kernels", plan.get("kernels")),
        ("inputs", plan.get("inputs")),
        ("cache", plan.get("cache")),
        ("data sets", ", ".join(summary.datasets)),
        ("prompts", _prompts(about)),
        ("answers", f"{about['max_new_tokens']} tokens at most" if "max_new_tokens" in about else None),
        ("speeds", SPEED_KINDS[summary.speed_kind]),
        *((_label(key), _fact(key, value)) for key, value in about.get("machine", {}).items()),
        ("forerun", about.get("forerun")),
        ("command", about.get("command")),
    ]
    told = {label: value for label, value in found if value not in (None, "")}
    return [(label, str(value)) for label, value in told.items()]


SPEED_KINDS: Final = {
    "decode": "decoding alone, prefill left out",
    "whole": "prefill included, since some contestants' arrival times are unknown",
}


def _label(key: str) -> str:
    return MACHINE_LABELS.get(key, key.removesuffix("_bytes").replace("_", " "))


def _prompts(about: Mapping[str, Any]) -> str | None:
    if "num_prompts" not in about:
        return None
    repeats = about.get("repeats", 1)
    return f"{about['num_prompts']} per data set, each asked {'once' if repeats == 1 else f'{repeats} times'}"


def _fact(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / GIB:.0f} GiB" if value >= GIB else f"{value / (1 << 20):.0f} MiB"
    if key == "foreign_load":
        return f"{100 * value:.0f} % of a core"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _first_ranking(summary: Summary) -> list[Row]:
    """Rows over all data sets at the lowest temperature, fastest first."""
    return ranked(summary.over_all(summary.temperatures[0])) if summary.temperatures else []


def _detail(summary: Summary, row: Row) -> str:
    parts = []
    if row.ratio is not None and not row.is_gain:
        parts.append(f"{row.contestant} {times(row.ratio)}" + ", which drafted nothing" * row.is_idle)
    if row.ratio is not None and row.ratio.low is not None:
        parts.append(f"95 % interval {interval(row.ratio)}{TIMES}")
    if row.mean_ratio is not None and row.is_gain:
        parts.append(f"mean of speeds {times(row.mean_ratio)}")
    num_prompts = row.speed.num_prompts if row.speed else 0
    num_sets = len(summary.datasets)
    parts.append(f"{num_prompts} prompt{'s' * (num_prompts != 1)} of {num_sets} data set{'s' * (num_sets != 1)}")
    parts.append(sampling(row.temperature))
    return " · ".join(parts)
