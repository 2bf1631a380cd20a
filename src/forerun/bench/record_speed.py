"""Two sets of answers compared in the published ways: the speed.py of EAGLE, of Spec-Bench and of SWIFT.

All three give the mean over questions of tokens over seconds, and the ratio of two such means: every question weighs
the same, however long its answer. Seconds include the prefill.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from statistics import fmean, stdev
from typing import Final

from forerun.bench.answers import Record
from forerun.bench.foreign_records import ACCEPT_LENGTHS, UNCOUNTED
from forerun.bench.json_lines import is_count
from forerun.core.errors import ConfigError

MT_BENCH: Final = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Means over answers, and their ratio.

    Args:
        mean_accepted: tokens per round over all rounds, bonus token included; None where rounds are not known.
    """

    tokens_per_s: float
    baseline_tokens_per_s: float
    speedup: float
    mean_accepted: float | None
    num_answers: int
    num_baseline_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpeed:
    """One question, and the ratio of means over all questions up to it."""

    question_id: int | str
    tokens_per_s: float
    baseline_tokens_per_s: float
    speedup: float
    running_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedComparison:
    """The published comparisons of two sets of answers.

    Args:
        overall: over all questions.
        tasks: by task as Spec-Bench groups them: MT-bench's eight categories are one. Tasks that one side lacks, and
            answers without a category, are left out.
        samples: by question as SWIFT lists them; questions that one side lacks are left out.
    """

    overall: Speeds
    tasks: Mapping[str, Speeds]
    samples: tuple[SampleSpeed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation; None for one value."""

    mean: float
    deviation: float | None
    num_values: int


def speed_comparison(
    ours: Iterable[Record],
    baseline: Iterable[Record],
    *,
    repeat: int = 0,
    count_tokens: CountTokens | None = None,
) -> SpeedComparison:
    """Ours over the baseline, by one answer to each question.

    Args:
        repeat: which answer; the scripts look at the first.
        count_tokens: tokens of a text, for the baseline. EAGLE and Spec-Bench count its tokens again, as ids that the
            tokenizer gives less one. None takes the counts written down, as SWIFT does.

    Raises:
        ConfigError: one side has no answer, an answer took no time, or its tokens were not counted.
    """
    mine = _rated([record for record in ours if record.repeat == repeat], None)
    others = _rated([record for record in baseline if record.repeat == repeat], count_tokens)
    by_task, baseline_by_task = _by_task(mine), _by_task(others)
    return SpeedComparison(
        overall=_speeds(mine, others, f"of repeat {repeat}"),
        tasks={
            task: _speeds(rated, baseline_by_task[task], f"of task {task}")
            for task, rated in by_task.items()
            if task in baseline_by_task
        },
        samples=tuple(_samples(mine, others)),
    )


def speedup_over_repeats(ours: Sequence[Record], baseline: Sequence[Record]) -> Spread:
    """Mean and deviation of the speed-up over repeats that both sides have, as Spec-Bench reports three runs.

    Raises:
        ConfigError: there is no such repeat, or one cannot be compared.
    """
    repeats = sorted({record.repeat for record in ours} & {record.repeat for record in baseline})
    if not repeats:
        raise ConfigError("the two sides have no repeat in common: compare answers to the same questions")
    ratios = [speed_comparison(ours, baseline, repeat=repeat).overall.speedup for repeat in repeats]
    return Spread(mean=fmean(ratios), deviation=stdev(ratios) if len(ratios) > 1 else None, num_values=len(ratios))


def task_of(category: str) -> str:
    """Spec-Bench's task of a category."""
    return "mt_bench" if category in MT_BENCH else category


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rated:
    record: Record
    tokens_per_s: float


def _rated(records: Sequence[Record], count_tokens: CountTokens | None) -> list[_Rated]:
    return [_Rated(record=record, tokens_per_s=_rate(record, count_tokens)) for record in records]


def _rate(record: Record, count_tokens: CountTokens | None) -> float:
    who = f"the answer of {record.contestant} to {record.question_id!r}"
    if count_tokens is None and UNCOUNTED in record.extra:
        raise ConfigError(f"{who} does not say how many tokens it has: count them with its model's tokenizer")
    counts = [turn.num_new_tokens if count_tokens is None else count_tokens(turn.text) for turn in record.turns]
    seconds = fsum(turn.wall_s for turn in record.turns)
    rate = sum(counts) / seconds if seconds > 0 else float("inf")
    if not isfinite(rate):
        raise ConfigError(f"{who} has {sum(counts)} tokens in {seconds} seconds: leave it out, or measure again")
    return rate


def _speeds(ours: Sequence[_Rated], baseline: Sequence[_Rated], what: str) -> Speeds:
    if not ours or not baseline:
        raise ConfigError(f"there are {len(ours)} answers {what} to compare with {len(baseline)}: both sides need one")
    rate, baseline_rate = (_mean([answer.tokens_per_s for answer in side]) for side in (ours, baseline))
    lengths = [length for answer in ours for length in accept_lengths(answer.record)]
    return Speeds(
        tokens_per_s=rate,
        baseline_tokens_per_s=baseline_rate,
        speedup=_ratio(rate, baseline_rate, what),
        mean_accepted=sum(lengths) / len(lengths) if lengths else None,
        num_answers=len(ours),
        num_baseline_answers=len(baseline),
    )


def accept_lengths(record: Record) -> tuple[int, ...]:
    """Tokens of every round of all turns, bonus token included; empty where they are not known."""
    flat = record.extra.get(ACCEPT_LENGTHS)
    if isinstance(flat, list):
        return tuple(length for length in flat if is_count(length))
    return tuple(length for turn in record.turns for length in turn.emitted)


def _samples(ours: Sequence[_Rated], baseline: Sequence[_Rated]) -> Iterable[SampleSpeed]:
    waiting = defaultdict[int | str, list[float]](list)
    for answer in reversed(baseline):
        waiting[answer.record.question_id].append(answer.tokens_per_s)
    rates: list[float] = []
    baseline_rates: list[float] = []
    for answer in ours:
        question_id = answer.record.question_id
        if not waiting[question_id]:
            continue
        rates.append(answer.tokens_per_s)
        baseline_rates.append(waiting[question_id].pop())
        what = f"up to question {question_id!r}"
        yield SampleSpeed(
            question_id=question_id,
            tokens_per_s=rates[-1],
            baseline_tokens_per_s=baseline_rates[-1],
            speedup=_ratio(rates[-1], baseline_rates[-1], what),
            running_speedup=_ratio(_mean(rates), _mean(baseline_rates), what),
        )


def _by_task(answers: Sequence[_Rated]) -> dict[str, list[_Rated]]:
    tasks: dict[str, list[_Rated]] = {}
    for answer in answers:
        if answer.record.category:
            tasks.setdefault(task_of(answer.record.category), []).append(answer)
    return tasks


def _mean(rates: Sequence[float]) -> float:
    """Finite for finite rates, since it divides before it adds."""
    return fsum(rate / len(rates) for rate in rates)


def _ratio(rate: float, baseline_rate: float, what: str) -> float:
    ratio = rate / baseline_rate if baseline_rate > 0 else float("inf")
    if not isfinite(ratio):
        raise ConfigError(f"the answers {what} give no speed-up: {rate} tokens/s over {baseline_rate} tokens/s")
    return ratio
