"""Record files: one answer per line, readable by the scripts of EAGLE, Spec-Bench and SWIFT.

Fields that those scripts use are under the keys they expect; all other fields are in the object `forerun`.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeAlias

from forerun.core.errors import ConfigError
from forerun.core.steps import SkipReport
from forerun_lab.bench.data.json_lines import JsonObject, parse, read_whole_lines
from forerun_lab.bench.records.answers import Match, Record, RoundColumns, Turn

VERSION: Final = 1
Key: TypeAlias = tuple[int | str, int]  # question id, repeat


def to_line(record: Record) -> str:
    """The record as a line of JSON without newline; `record_from` reads it back as an equal record.

    `idxs` and `decoding_steps` are rounds per turn, 0 if they are not known; `accept_lengths` holds the tokens of
    every round, bonus token included; `acceptance_rate` is accepted over drafted tokens.

    Raises:
        ConfigError: the record holds a value that JSON cannot, such as an infinite time.
    """
    try:
        line = json.dumps(_to_values(record), allow_nan=False)
        is_equal = record_from(parse("the line", line.encode())) == record
    except (TypeError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"the answer of {record.contestant} to {record.question_id!r} cannot be written as JSON: {error}"
        ) from error
    if not is_equal:
        raise ConfigError(
            f"the answer of {record.contestant} to {record.question_id!r} would change when it is read back: "
            "texts must be valid, and columns must have one length"
        )
    return line


def _to_values(record: Record) -> dict[str, object]:
    turns = record.turns
    steps = [len(turn.emitted) for turn in turns]
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "idxs": steps,
        "decoding_steps": steps,
        "new_tokens": [turn.num_new_tokens for turn in turns],
        "wall_time": [turn.wall_s for turn in turns],
        "accept_lengths": [count for turn in turns for count in turn.emitted],
        "acceptance_rate": acceptance_rate(turns),
    }
    return {
        "question_id": record.question_id,
        "category": record.category,
        "answer_id": f"{record.dataset}/{record.question_id}/{record.repeat}/{record.contestant}",
        "model_id": record.contestant,
        "choices": [choice],
        "tstamp": record.started_at,
        "forerun": {
            "version": VERSION,
            "dataset": record.dataset,
            "temperature": record.temperature,
            "repeat": record.repeat,
            "seed": record.seed,
            "turns": [_turn_values(turn) for turn in turns],
            "extra": {},
        },
    }


def _turn_values(turn: Turn) -> dict[str, object]:
    return {
        "token_ids": turn.token_ids,
        "num_prompt_tokens": turn.num_prompt_tokens,
        "emitted_at_s": turn.emitted_at_s,
        "num_near_ties": turn.num_near_ties,
        "rounds": None if turn.rounds is None else asdict(turn.rounds),
        "match": None if turn.match is None else asdict(turn.match),
        "skips": None if turn.skips is None else asdict(turn.skips),
    }


def acceptance_rate(turns: Iterable[Turn]) -> float | None:
    """Accepted over drafted tokens, without bonus tokens; None if nothing was drafted or it is not known."""
    rounds = [turn.rounds for turn in turns if turn.rounds is not None]
    num_drafted = sum(sum(columns.num_drafted) for columns in rounds)
    num_accepted = sum(sum(columns.num_accepted) for columns in rounds)
    return num_accepted / num_drafted if num_drafted else None


def record_from(line: JsonObject) -> Record:
    """The record that `to_line` wrote.

    Raises:
        ConfigError: the line is not one of ours, or was changed; the message names the line.
    """
    ours = line.nested("forerun")
    if ours.integer("version") != VERSION:
        ours.wrong("version", f"{VERSION}: read the file with the forerun that wrote it")
    choices = line.objects("choices")
    if len(choices) != 1:
        line.wrong("choices", "a list of one")
    return Record(
        question_id=line.identifier("question_id"),
        category=line.text("category"),
        contestant=line.text("model_id"),
        dataset=ours.text("dataset"),
        temperature=ours.number("temperature"),
        turns=_turns(choices[0], ours.objects("turns")),
        repeat=ours.integer("repeat"),
        started_at=line.signed("tstamp"),
        seed=ours.integer("seed") if ours.has("seed") else None,
    )


def _turns(choice: JsonObject, ours: tuple[JsonObject, ...]) -> tuple[Turn, ...]:
    texts = choice.texts("turns")
    num_new_tokens = choice.integers("new_tokens")
    wall_s = choice.numbers("wall_time")
    steps = choice.integers("decoding_steps")
    for key, column in (
        ("turns", texts),
        ("new_tokens", num_new_tokens),
        ("wall_time", wall_s),
        ("decoding_steps", steps),
    ):
        if len(column) != len(ours):
            choice.wrong(key, f"a list of {len(ours)}, as many as there are forerun.turns")
    emitted = split(choice.integers("accept_lengths"), steps)
    if emitted is None:
        choice.wrong("accept_lengths", f"a list of {sum(steps)}, as many as there are decoding_steps")
    return tuple(map(_turn, texts, num_new_tokens, wall_s, emitted, ours))


def _turn(text: str, num_new_tokens: int, wall_s: float, emitted: tuple[int, ...], ours: JsonObject) -> Turn:
    emitted_at_s = ours.numbers("emitted_at_s")
    if len(emitted_at_s) not in (0, len(emitted)):
        ours.wrong("emitted_at_s", f"a list of {len(emitted)}, as many as the turn has decoding_steps")
    return Turn(
        text=text,
        num_new_tokens=num_new_tokens,
        wall_s=wall_s,
        token_ids=ours.integers("token_ids"),
        num_prompt_tokens=ours.integer("num_prompt_tokens"),
        emitted=emitted,
        emitted_at_s=emitted_at_s,
        num_near_ties=ours.integer("num_near_ties"),
        rounds=_rounds(ours.nested("rounds")) if ours.has("rounds") else None,
        match=_match(ours.nested("match")) if ours.has("match") else None,
        skips=_skips(ours.nested("skips")) if ours.has("skips") else None,
    )


def _rounds(columns: JsonObject) -> RoundColumns:
    num_rounds = len(columns.integers("num_drafted"))
    for key, values in columns.values.items():
        if isinstance(values, list) and len(values) != num_rounds:
            columns.wrong(key, f"a list of {num_rounds}, as long as num_drafted")
    return RoundColumns(
        num_drafted=columns.integers("num_drafted"),
        num_verified=columns.integers("num_verified"),
        num_accepted=columns.integers("num_accepted"),
        draft_s=columns.numbers("draft_s"),
        verify_s=columns.numbers("verify_s"),
        wait_s=columns.numbers("wait_s"),
        was_hit=columns.flags("was_hit"),
    )


def _match(values: JsonObject) -> Match:
    return Match(
        first_difference=values.integer("first_difference") if values.has("first_difference") else None,
        margin=values.signed("margin") if values.has("margin") else None,
        is_near_tie=values.flag("is_near_tie"),
    )


def _skips(values: JsonObject) -> SkipReport:
    return SkipReport(
        is_searching=values.flag("is_searching"),
        attention=values.integers("attention"),
        mlp=values.integers("mlp"),
        matchness=values.number("matchness") if values.has("matchness") else None,
        hit_rate=values.number("hit_rate") if values.has("hit_rate") else None,
        num_scored=values.integer("num_scored"),
        search_s=values.number("search_s"),
    )


def split(flat: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Split the list into pieces of these lengths; None if the lengths do not add up to the list's."""
    if sum(lengths) != len(flat):
        return None
    ends = accumulate(lengths)
    return tuple(flat[end - length : end] for end, length in zip(ends, lengths, strict=True))


def read_records(path: Path) -> tuple[Record, ...]:
    """The records of a file that we wrote, without an unfinished last line.

    Raises:
        ConfigError: a line cannot be used, or two lines answer the same question for the same contestant.
    """
    return records_from(read_whole_lines(path)[0])


def records_from(lines: Iterable[JsonObject]) -> tuple[Record, ...]:
    """The records of these lines, which must all be different.

    Raises:
        ConfigError: as with `read_records`.
    """
    records = []
    places = dict[tuple[object, ...], str]()
    for line in lines:
        record = record_from(line)
        key = (record.contestant, record.dataset, record.temperature, record.question_id, record.repeat)
        if key in places:
            raise ConfigError(
                f"{line.place}: question_id {record.question_id!r}, repeat {record.repeat} was answered in "
                f"{places[key]} already: leave out one of the two lines"
            )
        places[key] = line.place
        records.append(record)
    return tuple(records)


class RecordFile:
    """A file of records that grows line by line and can be continued after its writer was killed.

    A record is on the disk when `append` returns. A kill before that leaves nothing or a partial line. Opening removes
    a partial line, so that no record is lost or duplicated. Only one process at a time may have a file open.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or create it and its folder.

        Raises:
            ConfigError: the file cannot be written, or holds lines that are not records.
        """
        self._path = path
        self._records: dict[Key, Record] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            objects, whole = read_whole_lines(path)
            self._records = {(record.question_id, record.repeat): record for record in records_from(objects)}
            self._file = path.open("ab", buffering=0)
            self._file.truncate(len(whole))
            if whole and not whole.endswith(b"\n"):
                self._write(b"\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error}): choose another folder, or free the disk") from error

    @property
    def records(self) -> Mapping[Key, Record]:
        """The records in the file, by question id and repeat."""
        return self._records

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on the disk.

        Raises:
            ConfigError: it cannot be written; the file is then closed, and opening it again repairs it.
        """
        key = (record.question_id, record.repeat)
        assert key not in self._records, f"{key} is in {self._path} already"
        line = to_line(record).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            self.close()
            raise ConfigError(f"{self._path} cannot be written ({error}): free the disk and start again") from error
        self._records[key] = record

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())
