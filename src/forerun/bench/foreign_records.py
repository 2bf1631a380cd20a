"""Record files by whoever wrote them: ours, EAGLE's gen_ea_answer, Spec-Bench's and SWIFT's eval.py.

Sources: SafeAILab/EAGLE eagle/evaluation, hemingkx/Spec-Bench evaluation, hemingkx/SWIFT evaluation_llama.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from forerun.bench.answers import Record, Turn
from forerun.bench.json_lines import JsonObject, read_whole_lines
from forerun.bench.record_files import records_from, split
from forerun.core.errors import ConfigError

T = TypeVar("T")
Kind: TypeAlias = Literal["forerun", "eagle", "spec_bench", "swift"]
TEMPERATURE: Final = re.compile(r"-temp(?:erature)?-(\d{1,3}(?:\.\d{1,6})?)(?=-|$)")
SUMMARY_NUMBERS: Final = ("Mean accepted tokens", "Token acceptance rate", "Best Skip Ratio")
SUMMARY_LAYERS: Final = ("Best Attn Layer Set", "Best MLP Layer Set")
# Keys of `extra` in records of others.
NUM_ROUNDS: Final = "num_rounds"  # per turn
ACCEPT_LENGTHS: Final = "accept_lengths"  # of all turns, where it is not known which is whose
UNCOUNTED: Final = "uncounted"  # true: nobody said how many tokens the texts have


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFileContents:
    """What a record file of any kind holds.

    Args:
        summary: the last summary line of a SWIFT file; empty for others.
        notes: what a reader of numbers made from these records should know.
    """

    records: tuple[Record, ...]
    kind: Kind
    summary: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_any_records(path: Path, *, dataset: str | None = None) -> RecordFileContents:
    """The records of a file, whose kind its lines tell.

    A choice of a foreign line becomes a record whose `repeat` is the number of the choice. SWIFT's questions have no
    ids, so theirs are the numbers of their lines, from 0; its model_id names the model alone, so that the contestant
    is named after the file.

    Args:
        dataset: name for the data set of foreign records, which do not say it; None: the folder's, see `dataset_in`.

    Raises:
        ConfigError: the file or a line cannot be used, or lines are of different kinds.
    """
    lines = read_whole_lines(path)
    notes = ["the last line is cut short and was left out"] if lines.is_torn else []
    if not lines.objects:
        raise ConfigError(f"{path} holds no record: a file of forerun, EAGLE, Spec-Bench or SWIFT is needed")
    kind = _common_kind(lines.objects)
    if kind == "forerun":
        return RecordFileContents(records=records_from(lines.objects), kind=kind, notes=tuple(notes))
    answers = [line for line in lines.objects if line.has("choices")]
    summaries = [line for line in lines.objects if not line.has("choices")]
    records = tuple(
        record
        for row, line in enumerate(answers)
        for record in _records(line, row=row, kind=kind, name=path.stem, dataset=dataset or dataset_in(path))
    )
    return RecordFileContents(
        records=records,
        kind=kind,
        summary=_summary(summaries[-1]) if summaries else {},
        notes=(*notes, *_notes(records, kind, num_summaries=len(summaries))),
    )


def dataset_in(path: Path) -> str:
    """The folder a data set's answers are in: Spec-Bench and SWIFT put a folder `model_answer` between."""
    parts = path.resolve().parts
    return parts[parts.index("model_answer") - 1] if "model_answer" in parts else parts[-2]


def _common_kind(lines: tuple[JsonObject, ...]) -> Kind:
    first = _kind(lines[0])
    for line in lines:
        if (kind := _kind(line)) != first:
            raise ConfigError(f"{line.place} looks like a line of {kind}, but {lines[0].place} like one of {first}")
    return first


def _kind(line: JsonObject) -> Kind:
    if line.has("forerun"):
        return "forerun"
    if not line.has("choices"):
        if any(map(line.has, SUMMARY_NUMBERS + SUMMARY_LAYERS)):
            return "swift"
        raise ConfigError(f"{line.place} is no record: it has neither choices nor the numbers of a SWIFT summary")
    choices = line.objects("choices")
    if not choices:
        line.wrong("choices", "a list of at least one answer")
    if not line.has("question_id"):
        return "swift"
    return "spec_bench" if choices[0].has("decoding_steps") or choices[0].has("accept_lengths") else "eagle"


def _records(line: JsonObject, *, row: int, kind: Kind, name: str, dataset: str) -> Iterator[Record]:
    contestant = name if kind == "swift" else line.text("model_id", name)
    temperature = temperature_in(contestant, name)
    for number, choice in enumerate(line.objects("choices")):
        turns, extra = _turns(choice, kind)
        yield Record(
            question_id=line.identifier("question_id", row),
            category=line.text("category", ""),
            contestant=contestant,
            dataset=dataset,
            temperature=0.0 if temperature is None else temperature,
            turns=turns,
            repeat=number,
            started_at=line.signed("tstamp", 0.0),
            extra=extra if temperature is not None else extra | {"temperature": None},
        )


def temperature_in(*names: str) -> float | None:
    """The temperature that a model's or a file's name ends in or holds, such as `-temperature-0.0` or `-temp-0.6-`."""
    found = [match for name in names if (match := TEMPERATURE.search(name))]
    return float(found[0][1]) if found else None


def _turns(choice: JsonObject, kind: Kind) -> tuple[tuple[Turn, ...], dict[str, object]]:
    """The turns of an answer, and what is known of it that a turn has no place for."""
    is_one_text = isinstance(choice.values.get("turns"), str)  # SWIFT
    texts = (choice.text("turns"),) if is_one_text else choice.texts("turns")
    unknown = (0,) * len(texts)
    num_new_tokens = _column(choice, "new_tokens", choice.integers("new_tokens", unknown), len(texts))
    wall_s = _column(choice, "wall_time", choice.numbers("wall_time"), len(texts))
    num_rounds = _num_rounds(choice, kind, len(texts))
    flat = choice.integers("accept_lengths", ())
    emitted = _by_turn(flat, num_rounds, len(texts))
    extra: dict[str, object] = {}
    if num_rounds:
        extra[NUM_ROUNDS] = list(num_rounds)
    if choice.has("acceptance_rate"):
        extra["acceptance_rate"] = choice.signed("acceptance_rate")
    if not choice.has("new_tokens"):
        extra[UNCOUNTED] = True
    if emitted is None:
        extra[ACCEPT_LENGTHS] = list(flat)
    columns = zip(texts, num_new_tokens, wall_s, emitted or ((),) * len(texts), strict=True)
    return tuple(
        Turn(text=text, num_new_tokens=num, wall_s=s, emitted=tokens) for text, num, s, tokens in columns
    ), extra


def _num_rounds(choice: JsonObject, kind: Kind, num_turns: int) -> tuple[int, ...]:
    """Rounds per turn; empty where it is not said. EAGLE's `idxs` are the numbers of the last rounds, from 0."""
    key, first = ("idxs", 1) if kind == "eagle" else ("decoding_steps", 0)
    if not choice.has(key):
        return ()
    return tuple(number + first for number in _column(choice, key, choice.integers(key), num_turns))


def _column(choice: JsonObject, key: str, values: tuple[T, ...], num_turns: int) -> tuple[T, ...]:
    if len(values) != num_turns:
        choice.wrong(key, f"a list of {num_turns}, as many as there are turns")
    return values


def _by_turn(flat: tuple[int, ...], num_rounds: tuple[int, ...], num_turns: int) -> tuple[tuple[int, ...], ...] | None:
    """The flat list of tokens per round by turn; None where it cannot be told.

    Some methods of Spec-Bench number their rounds from 0 like EAGLE, so that a turn has one more than it says.
    """
    if num_turns == 1:
        return (flat,)
    if not flat:
        return ((),) * num_turns
    return split(flat, num_rounds) or split(flat, tuple(last + 1 for last in num_rounds))


def _summary(line: JsonObject) -> dict[str, object]:
    numbers = {key: line.signed(key) for key in SUMMARY_NUMBERS if line.has(key)}
    return numbers | {key: list(line.integers(key)) for key in SUMMARY_LAYERS if line.has(key)}


def _notes(records: tuple[Record, ...], kind: Kind, *, num_summaries: int) -> Iterator[str]:
    if any(UNCOUNTED in record.extra for record in records):
        yield "new_tokens is absent: tokens must be counted from the texts, which a tokenizer may get wrong by a few"
    if any(ACCEPT_LENGTHS in record.extra for record in records):
        yield "accept_lengths does not add up to decoding_steps: tokens per round are known for whole answers only"
    if any("temperature" in record.extra for record in records):
        yield "no temperature is named in model_id or file: 0 is assumed"
    if any(record.repeat for record in records):
        yield "questions have several answers: EAGLE's and Spec-Bench's scripts look at the first, here repeat 0"
    doubled = sum(number > 1 for number in Counter((record.question_id, record.repeat) for record in records).values())
    if doubled:
        yield f"{doubled} questions were answered more than once; all answers count, as in the scripts of {kind}"
    if num_summaries > 1:
        yield f"there are {num_summaries} summary lines; the last is given"
