"""One answer as it came, token by token: who wrote each, and when; beside the baseline's on the same prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from forerun.bench.records.answers import Record, Turn
from forerun.bench.records.metrics import decode_tokens_per_s, delivered, has_times
from forerun.bench.report.columns import milliseconds

TOKEN_TEXTS: Final = "token_texts"  # key in a record's `extra`: for each turn the text of every token
MAX_CELLS: Final = 400
HEIGHT: Final = 40  # of a lane, in units of its own
WIDTH: Final = 1000.0
FILLED: Final = 0.86  # of a cell; the rest sets it apart from the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A token and its share of the time its burst took.

    Args:
        text: None where the record does not tell.
        is_drafted: written by the drafter and kept; otherwise it is the target's own choice.
    """

    start_s: float
    end_s: float
    round_number: int
    text: str | None
    is_drafted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """An answer: first the time until the first tokens came, then the cells."""

    contestant: str
    cells: tuple[Cell, ...]

    @property
    def end_s(self) -> float:
        return self.cells[-1].end_s

    @property
    def num_drafted(self) -> int:
        return sum(cell.is_drafted for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Answers to one prompt; the first lane is the contestant of the headline."""

    dataset: str
    question_id: int | str
    lanes: tuple[Lane, ...]


def choose_timeline(records: Iterable[Record], contestant: str, baseline: str | None) -> Timeline | None:
    """Answers to the prompt of median speed-up at the lowest temperature: neither the best nor the worst.

    Without a baseline it is the prompt of median speed. None where the contestant's times of arrival are not known.
    """
    timed = [record for record in records if record.turns and has_times(record.turns[0]) and _is_short(record)]
    lowest = min((record.temperature for record in timed), default=0.0)
    answers = {
        (record.contestant, record.dataset, record.question_id): record
        for record in sorted(timed, key=lambda record: -record.repeat)  # the first repeat stays
        if record.temperature == lowest and record.contestant in (contestant, baseline)
    }
    pairs = [
        (_gain(record, other), record, other)
        for (name, dataset, question_id), record in answers.items()
        if name == contestant
        and ((other := answers.get((str(baseline), dataset, question_id))) is not None or baseline is None)
    ]
    if not pairs:
        return None
    _, record, other = sorted(pairs, key=lambda pair: pair[0])[len(pairs) // 2]
    lanes = [_lane(found) for found in (record, other) if found is not None]
    return Timeline(dataset=record.dataset, question_id=record.question_id, lanes=tuple(lanes))


def draw_lane(lane: Lane, end_s: float) -> str:
    """The lane as SVG that stretches to any width; `end_s` is the right edge, the same for all lanes."""
    scale = WIDTH / end_s if end_s > 0 else 0.0
    first_s = lane.cells[0].start_s
    parts = [
        f'<rect class="prefill" x="0" y="0" width="{first_s * scale:.2f}" height="{HEIGHT}">'
        f"<title>prefill, {milliseconds(first_s)} ms</title></rect>"
    ]
    parts += [
        f'<rect class="{"drafted" if cell.is_drafted else "target"}" x="{cell.start_s * scale:.2f}" y="0" '
        f'width="{max(cell.end_s - cell.start_s, 0.0) * scale * FILLED:.2f}" height="{HEIGHT}">'
        f"<title>{escape(_tip(place, cell))}</title></rect>"
        for place, cell in enumerate(lane.cells)
    ]
    label = f"{lane.contestant}: {len(lane.cells)} tokens in {milliseconds(lane.end_s)} ms, {lane.num_drafted} drafted"
    return (
        f'<svg class="lane" role="img" aria-label="{escape(label, quote=True)}" viewBox="0 0 {WIDTH:.0f} {HEIGHT}" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg>'
    )


def draw_text(lane: Lane) -> str:
    """The answer with its drafted tokens marked; empty where the tokens' texts are not known."""
    if any(cell.text is None for cell in lane.cells):
        return ""
    return "".join(
        f"<mark>{escape(cell.text or '')}</mark>" if cell.is_drafted else escape(cell.text or "") for cell in lane.cells
    )


def _is_short(record: Record) -> bool:
    return 0 < record.turns[0].num_new_tokens <= MAX_CELLS and sum(delivered(record.turns[0])) > 0


def _gain(record: Record, other: Record | None) -> float:
    speed = decode_tokens_per_s(record) or 0.0
    base = decode_tokens_per_s(other) if other is not None else None
    return speed / base if base else speed


def _lane(record: Record) -> Lane:
    turn = record.turns[0]
    return Lane(contestant=record.contestant, cells=tuple(_cells(turn, _texts(record, turn))))


def _texts(record: Record, turn: Turn) -> Sequence[str] | None:
    """The first turn's tokens as text, if the record has a text for each."""
    told = record.extra.get(TOKEN_TEXTS)
    texts = told[0] if isinstance(told, list) and told else None
    if not isinstance(texts, list) or len(texts) < turn.num_new_tokens:
        return None
    return [str(text) for text in texts]


def _cells(turn: Turn, texts: Sequence[str] | None) -> Iterable[Cell]:
    """Tokens of a round share its time evenly. The first round's time is taken to be as long as the second's.

    When the prefill ended is not known: the first arrival is all that is seen.
    """
    times = turn.emitted_at_s
    before = max(times[0] - (times[1] - times[0] if len(times) > 1 else 0.0), 0.0)
    place = 0
    for round_number, (num, after) in enumerate(zip(delivered(turn), times, strict=True)):
        num_accepted = (
            turn.rounds.num_accepted[round_number]
            if _has_rounds(turn) and turn.rounds
            else turn.emitted[round_number] - 1
        )
        for index in range(num):
            width = (after - before) / num
            yield Cell(
                start_s=before + index * width,
                end_s=before + (index + 1) * width,
                round_number=round_number,
                text=texts[place] if texts is not None else None,
                is_drafted=index < num_accepted,
            )
            place += 1
        before = after


def _has_rounds(turn: Turn) -> bool:
    return turn.rounds is not None and len(turn.rounds.num_accepted) == len(turn.emitted)


def _tip(place: int, cell: Cell) -> str:
    writer = "drafted, accepted" if cell.is_drafted else "target's own"
    text = f"{cell.text!r}, " if cell.text is not None else ""
    return f"{text}token {place + 1}, {writer}, round {cell.round_number + 1}, at {milliseconds(cell.end_s)} ms"
