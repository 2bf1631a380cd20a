"""Test whether a second run is slower than a first one, beyond the variation between prompts.

Only variation between prompts counts as noise. If the whole machine was slower during one run, that run is slower, and
the tolerance is for such cases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.json_lines import JsonObject, parse, read_bytes
from forerun_lab.bench.report.bootstrap import Estimate, Resamples
from forerun_lab.bench.report.summary import VERSION, PromptSpeed, Summary, summarise, times_taken

FALSE_ALARMS: Final = 0.025  # of all comparisons of equal runs; each tail of a 95 % interval has as much
NUM_RESAMPLES: Final = 10_000

RowKey: TypeAlias = tuple[str | None, str, float]  # data set, contestant, temperature
PromptKey: TypeAlias = tuple[str | None, int | str]
Prompts: TypeAlias = Mapping[PromptKey, PromptSpeed]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpeeds:
    """The part of a report that is compared.

    Args:
        kind: whether the speeds include the prefill; see `Summary`.
        rows: the speed of every prompt, data set by data set.
    """

    kind: str
    rows: Mapping[tuple[str, str, float], Sequence[PromptSpeed]]

    @classmethod
    def of(cls, summary: Summary) -> "RunSpeeds":
        rows = {
            (row.dataset, row.contestant, row.temperature): row.prompts
            for row in summary.rows
            if row.dataset is not None
        }
        return cls(kind=summary.speed_kind, rows=rows)

    @classmethod
    def read(cls, path: Path) -> "RunSpeeds":
        """Read the speeds of a report.json, a run's folder, or a record file.

        Raises:
            ConfigError: the path is none of these.
        """
        if path.is_dir() or path.suffix == ".jsonl":
            return cls.of(summarise(path))
        if not path.is_file():
            raise ConfigError(f"there is no {path}: give a report.json or a run's folder")
        try:
            report = parse(str(path), read_bytes(path))
            if report.integer("version", 0) != VERSION:
                report.wrong("version", str(VERSION))
            rows = {_row_key(row): _prompt_speeds(row) for row in report.objects("rows") if row.has("dataset")}
            return cls(kind=report.text("speed_kind"), rows=rows)
        except ConfigError as error:
            raise ConfigError(f"{path} is not a report ({error}): make one with forerun bench report OUT") from error

    def prompts(self) -> dict[RowKey, dict[PromptKey, PromptSpeed]]:
        """The prompts of each row and, if there are several data sets, of all of them."""
        found: dict[RowKey, dict[PromptKey, PromptSpeed]] = {}
        has_many = len({dataset for dataset, _, _ in self.rows}) > 1
        for (dataset, contestant, temperature), speeds in self.rows.items():
            for shown_as in (dataset, None) if has_many else (dataset,):
                row = found.setdefault((shown_as, contestant, temperature), {})
                row |= {(dataset, prompt.question_id): prompt for prompt in speeds}
        return found


def _row_key(row: JsonObject) -> tuple[str, str, float]:
    return row.text("dataset"), row.text("contestant"), row.number("temperature")


def _prompt_speeds(row: JsonObject) -> list[PromptSpeed]:
    return [
        PromptSpeed(
            question_id=prompt.identifier("question_id"),
            tokens_per_s=prompt.number("tokens_per_s"),
            num_tokens=prompt.integer("num_tokens"),
        )
        for prompt in row.objects("prompts")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One row of both runs; a data set of None means all of them.

    Args:
        ratio: speed of the second run over the first: the time that the second run's tokens would have taken in the
            first, prompt by prompt, divided by the time that they took, on the prompts that both have.
        chance: p-value: how likely a ratio this small is if the second run is not slower, given the tolerance.
        is_slower: whether the p-value is too small for this many rows.
    """

    dataset: str | None
    contestant: str
    temperature: float
    ratio: Estimate
    chance: float
    is_slower: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    rows: tuple[ComparedRow, ...]
    num_unpaired: int

    @property
    def num_unknown(self) -> int:
        """Number of rows with too few common prompts for a confidence interval."""
        return sum(row.ratio.low is None and row.ratio.high is None for row in self.rows)

    @property
    def is_slower(self) -> bool:
        return any(row.is_slower for row in self.rows)


def compare(before: RunSpeeds, after: RunSpeeds, *, tolerance: float = 0.0) -> Comparison:
    """Compare row by row and prompt by prompt.

    A single row is slower if its whole interval lies below 1 - tolerance. With many rows some are low by chance, so
    Holm's correction is applied: all rows together raise a false alarm in 2.5 of 100 comparisons of equal runs.

    Args:
        tolerance: a slowdown that is ignored, as a share: 0.03 for 3 %.

    Raises:
        ConfigError: the runs have nothing in common, or measure different things.
    """
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance {tolerance} must lie in [0, 1): 0.03 lets a slowdown of 3 % pass")
    if before.kind != after.kind:
        raise ConfigError(
            f"the first report is about {before.kind} speeds, the second about {after.kind} ones: "
            "compare runs with the same kinds of contestants"
        )
    first = before.prompts()
    second = after.prompts()
    pairs = {key: _paired(first[key], second[key]) for key in first if key in second}
    pairs = {key: pair for key, pair in pairs.items() if pair[0]}
    if not pairs:
        raise ConfigError("the reports share no question of the same data set, contestant and temperature")
    num_unpaired = len(first.keys() ^ second.keys())
    return Comparison(rows=_judged(pairs, 1 - tolerance), num_unpaired=num_unpaired)


def holm(chances: Sequence[float], allowed: float) -> list[bool]:
    """Which of these p-values are significant, with a chance of at most `allowed` that any of them is wrong.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979); it holds for dependent rows.
    """
    is_rejected = [False] * len(chances)
    for num_done, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[place] > allowed / (len(chances) - num_done):
            break
        is_rejected[place] = True
    return is_rejected


def _paired(first: Prompts, second: Prompts) -> tuple[list[float], list[float]]:
    before, after = ({key: prompt.tokens_per_s for key, prompt in side.items()} for side in (first, second))
    tokens = {key: prompt.num_tokens for key, prompt in second.items()}
    return times_taken(tokens, before, after, [key for key in first if key in second])


def _judged(pairs: Mapping[RowKey, tuple[list[float], list[float]]], bound: float) -> tuple[ComparedRow, ...]:
    num_resamples = max(NUM_RESAMPLES, int(4 * len(pairs) / FALSE_ALARMS))  # enough for the smallest p-value needed
    resamples = [Resamples(before, after, num_resamples=num_resamples) for before, after in pairs.values()]
    chances = [each.chance_of_at_least(bound) for each in resamples]
    verdicts = holm(chances, FALSE_ALARMS)
    return tuple(
        ComparedRow(
            dataset=dataset,
            contestant=contestant,
            temperature=temperature,
            ratio=each.estimate(),
            chance=chance,
            is_slower=is_slower,
        )
        for (dataset, contestant, temperature), each, chance, is_slower in zip(
            pairs, resamples, chances, verdicts, strict=True
        )
    )
