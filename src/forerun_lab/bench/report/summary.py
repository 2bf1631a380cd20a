"""Summarise a run: a row for each data set, contestant and temperature, and one over all data sets."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from forerun.core.errors import ConfigError
from forerun_lab.bench.records import metrics
from forerun_lab.bench.records.answers import Record
from forerun_lab.bench.records.metrics import DraftMeasures, Exactness, Latency, MeanSpeed, TimeShares
from forerun_lab.bench.records.run_folder import RecordedRun, left_out, read_files, read_folder, with_baseline
from forerun_lab.bench.report.bootstrap import Estimate, estimate
from forerun_lab.bench.report.streams import Stream, streams_of

NONE: Final = "none"
VERSION: Final = 2  # of report.json
IDLE: Final = 1.005  # tokens per round: fewer are shown as 1.00
PromptKeyT = TypeVar("PromptKeyT")
SpeedKind = Literal["decode", "whole"]
SPEED_OF: Final[Mapping[SpeedKind, metrics.SpeedOf]] = {
    "decode": metrics.decode_tokens_per_s,
    "whole": metrics.whole_tokens_per_s,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpeed:
    """A prompt's tokens/s, the median over its repeats, and the new tokens of its answer."""

    question_id: int | str
    tokens_per_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contestant on one data set, or on all, at one temperature.

    Args:
        dataset: None for the row over all data sets.
        speed: all tokens over all the time they took, in tokens/s of the summary's kind, each prompt at the median over
            its repeats; None if it is not known.
        is_idle: whether it should have drafted and no drafted token was accepted, or hardly one. It decodes plainly
            then, and a ratio above 1 is noise, whatever its interval.
        slow_tokens_per_s: the 5th percentile over prompts, of the same kind.
        ratio: the time that the baseline would have taken for these tokens, prompt by prompt, over the time they took;
            None without a baseline, and for the baseline itself.
        mean_ratio: the mean over prompts of tokens/s over the baseline's mean, as most papers report speed-ups; one
            prompt with a repetitive text can dominate it.
        decode, whole: tokens/s without and with the prefill.
        exactness: its texts compared with those of drafter `none`.
        kept_texts: its texts compared with those of the same engine without drafts.
        floor_share: the byte floor over the mean time of a one-row pass, the share of the bandwidth that was used.
        floor_token_s: the byte floor per token at this row's tokens per round: the time with ideal kernels if drafting
            cost nothing and a pass of several rows cost as much as a pass of one.
        prompts: empty in a row over all data sets.
    """

    dataset: str | None
    contestant: str
    temperature: float
    num_answers: int
    num_tokens: int
    speed: Estimate | None
    is_idle: bool
    slow_tokens_per_s: float | None
    ratio: Estimate | None
    mean_ratio: Estimate | None
    decode: MeanSpeed
    whole: MeanSpeed
    latency: Latency
    drafting: DraftMeasures
    shares: TimeShares | None
    exactness: Exactness | None
    kept_texts: Exactness | None
    floor_share: float | None
    floor_token_s: float | None
    prompts: tuple[PromptSpeed, ...]

    @property
    def is_gain(self) -> bool:
        """Whether it is faster than the baseline: beyond noise, and by drafts."""
        return not self.is_idle and self.ratio is not None and self.ratio.low is not None and self.ratio.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything a report shows except texts.

    Args:
        speed_kind: "decode" excludes the prefill; "whole" is used if a contestant's arrival times are unknown.
        baseline: the contestant that ratios refer to; None if there is none.
        about: the contents of run.json.
        streams: the contestants that search for what their drafts skip, request by request.
    """

    speed_kind: SpeedKind
    baseline: str | None
    rows: tuple[Row, ...]
    streams: tuple[Stream, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def contestants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.contestant for row in self.rows))

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.dataset for row in self.rows if row.dataset is not None))

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(sorted({row.temperature for row in self.rows}))

    def over_all(self, temperature: float) -> tuple[Row, ...]:
        """The rows over all data sets."""
        return tuple(row for row in self.rows if row.dataset is None and row.temperature == temperature)

    def kind_of(self, contestant: str) -> str:
        """ "drafter" for one of ours, "peer" for another program; "" if run.json has no kind."""
        return str(self.about.get("contestants", {}).get(contestant, {}).get("kind", ""))

    def to_json(self) -> str:
        """The contents of report.json."""
        return json.dumps({"version": VERSION} | asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def skips(self) -> dict[str, str]:
        """The contestants that could not take part, and the reasons."""
        return left_out(self.about)


def summarise(source: Path | Sequence[Path], *, baseline: str | None = None) -> Summary:
    """The numbers of a run's folder, or of record files.

    Args:
        baseline: a contestant, or a record file to add; None takes drafter `none` if it took part.

    Raises:
        ConfigError: a file cannot be read, or no contestant has the baseline's name.
    """
    run, name = _read_with(source, baseline)
    return summarise_run(run, baseline=name)


def _read_with(source: Path | Sequence[Path], baseline: str | None) -> tuple[RecordedRun, str | None]:
    """The answers, and the name of the baseline among the contestants."""
    paths = [source] if isinstance(source, Path) else list(source)
    run = read_folder(paths[0]) if len(paths) == 1 and paths[0].is_dir() else read_files(paths)
    names = {record.contestant for record in run.records}
    if baseline is None:
        return run, NONE if NONE in names else None
    if baseline in names:
        return run, baseline
    if Path(baseline).is_file():
        return with_baseline(run, Path(baseline))
    told = ", ".join(sorted(names)) or "nobody"
    raise ConfigError(f"the baseline {baseline!r} is neither a contestant ({told}) nor a record file: name one")


def summarise_run(run: RecordedRun, *, baseline: str | None) -> Summary:
    """The numbers of these answers."""
    kind = _speed_kind(run.records)
    groups = _grouped(run, baseline)
    kinds = {name: str(entry.get("kind", "")) for name, entry in run.about.get("contestants", {}).items()}
    floor = run.about.get("floor")
    rows = [_row(key, records, groups, kind, baseline, kinds, floor) for key, records in groups.items()]
    return Summary(
        speed_kind=kind,
        baseline=baseline,
        rows=tuple(rows),
        streams=streams_of(run.records, baseline, SPEED_OF[kind]),
        about=run.about,
        notes=tuple(_gaps(groups)),
    )


GroupKey = tuple[str | None, str, float]  # data set, contestant, temperature
Groups = dict[GroupKey, list[Record]]


def _speed_kind(records: Iterable[Record]) -> SpeedKind:
    """Decoding alone, unless that is unknown for one contestant, because two kinds of speed must not be compared."""
    is_known: dict[str, bool] = {}
    for record in records:
        known = is_known.get(record.contestant, False)
        is_known[record.contestant] = known or metrics.decode_tokens_per_s(record) is not None
    return "decode" if all(is_known.values()) else "whole"


def _grouped(run: RecordedRun, baseline: str | None) -> Groups:
    """Records by row, in the order of a report: by temperature, then data set; the row over all data sets is last."""
    found: Groups = defaultdict(list)
    for record in run.records:
        found[record.dataset, record.contestant, record.temperature].append(record)
        found[None, record.contestant, record.temperature].append(record)
    names = [baseline, *run.about.get("contestants", ()), *(contestant for _, contestant, _ in found)]
    datasets = [*run.about.get("datasets", ()), *(dataset for dataset, _, _ in found if dataset is not None), None]

    def place(key: GroupKey) -> tuple[float, int, int]:
        return key[2], datasets.index(key[0]), names.index(key[1])

    return {key: found[key] for key in sorted(found, key=place)}


def _row(
    key: GroupKey,
    records: Sequence[Record],
    groups: Groups,
    kind: SpeedKind,
    baseline: str | None,
    kinds: Mapping[str, str],
    floor: Mapping[str, float] | None,
) -> Row:
    dataset, contestant, temperature = key
    speeds = metrics.prompt_speeds(records, SPEED_OF[kind])
    tokens = metrics.prompt_tokens(records)
    compared_with = groups.get((dataset, baseline, temperature), ()) if baseline not in (None, contestant) else ()
    base = metrics.prompt_speeds(compared_with, SPEED_OF[kind])
    common = [key for key in speeds if key in base]
    drafting = metrics.drafting(records)
    by_kind = {each: metrics.speed(metrics.prompt_speeds(records, speed_of)) for each, speed_of in SPEED_OF.items()}
    floor_s = floor["bytes_per_step"] / floor["bytes_per_s"] if floor else None
    one_row_s = metrics.one_row_verify_s(records)
    return Row(
        dataset=dataset,
        contestant=contestant,
        temperature=temperature,
        num_answers=len(records),
        num_tokens=sum(turn.num_new_tokens for record in records for turn in record.turns),
        speed=estimate(*totals(tokens, speeds)) if speeds else None,
        is_idle=(drafting.tokens_per_round or inf) < IDLE and should_draft(contestant, kinds),
        slow_tokens_per_s=by_kind[kind].slow,
        ratio=estimate(*times_taken(tokens, base, speeds, common)) if common else None,
        mean_ratio=estimate([speeds[key] for key in common], [base[key] for key in common]) if common else None,
        decode=by_kind["decode"],
        whole=by_kind["whole"],
        latency=metrics.latency(records),
        drafting=drafting,
        shares=metrics.time_shares(records),
        exactness=metrics.exactness(records),
        kept_texts=metrics.kept_texts(records, groups.get((dataset, plain_of(contestant, kinds), temperature), ())),
        floor_share=floor_s / one_row_s if floor_s and one_row_s else None,
        floor_token_s=floor_s / drafting.tokens_per_round if floor_s and drafting.tokens_per_round else None,
        prompts=tuple(
            PromptSpeed(question_id=name[1], tokens_per_s=speed, num_tokens=tokens[name])
            for name, speed in speeds.items()
        )
        if dataset is not None
        else (),
    )


def plain_of(contestant: str, kinds: Mapping[str, str]) -> str:
    """The contestant that decodes without drafts in the same engine, or "" if this is that one. For a peer, it is the
    peer whose name begins this one's."""
    if kinds.get(contestant) == "peer":
        return next((name for name in kinds if contestant.startswith(f"{name}_")), "")
    return NONE if kinds.get(contestant) and contestant != NONE else ""


def should_draft(contestant: str, kinds: Mapping[str, str]) -> bool:
    """Whether a contestant drafts, as far as its name and its kind tell."""
    return contestant != NONE and (kinds.get(contestant) != "peer" or plain_of(contestant, kinds) != "")


def totals(tokens: Mapping[PromptKeyT, int], speeds: Mapping[PromptKeyT, float]) -> tuple[list[float], list[float]]:
    """Tokens and seconds of each prompt."""
    return [float(tokens[key]) for key in speeds], [tokens[key] / speed for key, speed in speeds.items()]


def times_taken(
    tokens: Mapping[PromptKeyT, int],
    slower: Mapping[PromptKeyT, float],
    faster: Mapping[PromptKeyT, float],
    keys: Sequence[PromptKeyT],
) -> tuple[list[float], list[float]]:
    """Seconds that each prompt's tokens take at one speed and at the other."""
    return [tokens[key] / slower[key] for key in keys], [tokens[key] / faster[key] for key in keys]


def _gaps(groups: Groups) -> list[str]:
    """Notes on contestants that answered fewer questions, so that their rows over all data sets have other prompts."""
    notes = []
    for temperature in sorted({temperature for _, _, temperature in groups}):
        answered = {
            name: len({(record.dataset, record.question_id) for record in records})
            for (dataset, name, at), records in groups.items()
            if dataset is None and at == temperature
        }
        most = max(answered.values())
        notes += [
            f"{name} answered {num} of {most} questions at temperature {temperature:g}: its row over all data sets is "
            "about those; ratios compare common questions only"
            for name, num in answered.items()
            if num < most
        ]
    return notes
