"""Self-drafting over a stream of requests: the phases of its search, and the speed by the number of the request.

SWIFT (arXiv 2410.06916) calls them the optimisation phase, while it searches, and the acceleration phase after that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from forerun.core.steps import SkipReport
from forerun_lab.bench.records.answers import Record

SpeedOf: TypeAlias = Callable[[Record], float | None]
Phase: TypeAlias = Literal["optimisation", "acceleration"]

PHASES: Final[tuple[Phase, ...]] = ("optimisation", "acceleration")
TITLES: Final = ("phase", "requests", "tokens", "tokens/s", "\N{MULTIPLICATION SIGN} baseline", "search s", "matchness")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """One request of a contestant that searches, in the order in which it was asked.

    Args:
        phase: "optimisation" if the search went on when the request began, or had begun again when it ended.
        tokens_per_s: of the report's kind; None if it is not known.
        baseline_tokens_per_s: the baseline's speed for the same question and repeat.
        search_s: seconds that the search took in this request.
        matchness: of the set in use at its end.
    """

    number: int
    dataset: str
    phase: Phase
    num_tokens: int
    tokens_per_s: float | None
    baseline_tokens_per_s: float | None
    search_s: float
    matchness: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """All requests of one contestant at one temperature."""

    contestant: str
    temperature: float
    requests: tuple[StreamRequest, ...]

    def of_phase(self, phase: Phase) -> tuple[StreamRequest, ...]:
        return tuple(request for request in self.requests if request.phase == phase)


def streams_of(records: Iterable[Record], baseline: str | None, speed_of: SpeedOf) -> tuple[Stream, ...]:
    """The streams of all contestants that search, in the order of the report."""
    asked: dict[tuple[float, str], list[Record]] = {}
    base = dict[tuple[object, ...], float | None]()
    for record in records:
        if record.contestant == baseline:
            base[question_of(record)] = speed_of(record)
        if any(turn.skips is not None for turn in record.turns):
            asked.setdefault((record.temperature, record.contestant), []).append(record)
    found = []
    for (temperature, contestant), answers in sorted(asked.items()):
        answers.sort(key=lambda record: record.started_at)
        requests = requests_of(answers, base, speed_of)
        if any(request.search_s for request in requests):
            found.append(Stream(contestant=contestant, temperature=temperature, requests=requests))
    return tuple(found)


def question_of(record: Record) -> tuple[object, ...]:
    return record.dataset, record.question_id, record.repeat, record.temperature


def requests_of(
    records: Sequence[Record], base: Mapping[tuple[object, ...], float | None], speed_of: SpeedOf
) -> tuple[StreamRequest, ...]:
    """The requests of one contestant, given in the order in which it answered."""
    requests = []
    before: SkipReport | None = None
    for number, record in enumerate(records, start=1):
        skips = record.turns[-1].skips
        if skips is None:
            continue
        goes_on = skips.num_scored > 0 if before is None else before.is_searching
        spent_s = 0.0 if before is None else before.search_s
        requests.append(
            StreamRequest(
                number=number,
                dataset=record.dataset,
                phase="optimisation" if goes_on or skips.is_searching else "acceleration",
                num_tokens=sum(turn.num_new_tokens for turn in record.turns),
                tokens_per_s=speed_of(record),
                baseline_tokens_per_s=base.get(question_of(record)),
                search_s=skips.search_s - spent_s if skips.search_s >= spent_s else skips.search_s,  # a new engine
                matchness=skips.matchness,
            )
        )
        before = skips
    return tuple(requests)


def phase_cells(stream: Stream) -> list[tuple[str, ...]]:
    """A line of cells for each phase that the stream has, under TITLES."""
    lines = list[tuple[str, ...]]()
    for phase in PHASES:
        requests = stream.of_phase(phase)
        if not requests:
            continue
        timed = [request for request in requests if request.tokens_per_s]
        taken_s = sum(request.num_tokens / (request.tokens_per_s or 1.0) for request in timed)
        compared = [request for request in timed if request.baseline_tokens_per_s]
        base_s = sum(request.num_tokens / (request.baseline_tokens_per_s or 1.0) for request in compared)
        same_s = sum(request.num_tokens / (request.tokens_per_s or 1.0) for request in compared)
        matchness = requests[-1].matchness
        lines.append(
            (
                phase,
                str(len(requests)),
                str(sum(request.num_tokens for request in requests)),
                f"{sum(request.num_tokens for request in timed) / taken_s:.1f}" if taken_s else "",
                f"{base_s / same_s:.2f}" if same_s else "",
                f"{sum(request.search_s for request in requests):.1f}",
                "" if matchness is None else f"{100 * matchness:.0f} %",
            )
        )
    return lines


def title_of(stream: Stream) -> str:
    return f"{stream.contestant} over the stream of requests, temperature {stream.temperature:g}"


def changes_of_task(stream: Stream) -> list[tuple[int, str]]:
    """The number of each request at which another data set begins, and the set; alternating sets have none."""
    first = stream.requests[0]
    changes = [(first.number, first.dataset)]
    changes += [
        (after.number, after.dataset) for before, after in pairwise(stream.requests) if before.dataset != after.dataset
    ]
    return changes if len(changes) <= len({request.dataset for request in stream.requests}) else []
