"""Our record files: nothing lost in writing and reading, nothing lost or doubled by kills."""

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.json_lines import parse
from forerun_lab.bench.records.answers import Match, Record, RoundColumns, Turn
from forerun_lab.bench.records.record_files import RecordFile, read_records, record_from, to_line
from tests.bench.samples import as_bytes, our_lines, record, turn

COUNTS = st.integers(0, 2**63 - 1)
SIZES = st.floats(0, 1e300)
SIGNED = st.floats(-1e300, 1e300)
TEXTS = st.text(max_size=20)
MATCHES = st.builds(Match, first_difference=st.none() | COUNTS, margin=st.none() | SIGNED, is_near_tie=st.booleans())


def tuples(items: st.SearchStrategy[object], length: int) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, min_size=length, max_size=length).map(tuple)


@st.composite
def columns(draw: st.DrawFn) -> RoundColumns:
    length = draw(st.integers(0, 4))
    counts = {name: draw(tuples(COUNTS, length)) for name in ("num_drafted", "num_verified", "num_accepted")}
    times = {name: draw(tuples(SIZES, length)) for name in ("draft_s", "verify_s", "wait_s")}
    return RoundColumns(**counts, **times, was_hit=draw(tuples(st.booleans(), length)))  # type: ignore[arg-type]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    emitted = draw(st.lists(COUNTS, max_size=4).map(tuple))
    return Turn(
        text=draw(TEXTS),
        num_new_tokens=draw(COUNTS),
        wall_s=draw(SIZES),
        token_ids=draw(st.lists(COUNTS, max_size=4).map(tuple)),
        num_prompt_tokens=draw(COUNTS),
        emitted=emitted,
        emitted_at_s=draw(st.just(()) | tuples(SIZES, len(emitted))),  # type: ignore[arg-type]
        num_near_ties=draw(COUNTS),
        rounds=draw(st.none() | columns()),
        match=draw(st.none() | MATCHES),
    )


RECORDS = st.builds(
    Record,
    question_id=TEXTS | st.integers(-(2**63) + 1, 2**63 - 1),
    category=TEXTS,
    contestant=TEXTS,
    dataset=TEXTS,
    temperature=SIZES,
    turns=st.lists(turns(), max_size=3).map(tuple),
    repeat=COUNTS,
    started_at=SIGNED,
    seed=st.none() | COUNTS,
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(given_record: Record) -> None:
    line = to_line(given_record)
    assert "\n" not in line
    assert record_from(parse("f:1", line.encode())) == given_record


def test_a_line_has_what_the_scripts_of_others_look_for() -> None:
    mine = record(0)
    values = json.loads(to_line(mine))
    choice = values["choices"][0]
    assert (values["question_id"], values["category"], values["model_id"]) == (0, "writing", "draft_model")
    assert choice["turns"] == [turn.text for turn in mine.turns]
    assert choice["new_tokens"] == [turn.num_new_tokens for turn in mine.turns]
    assert choice["wall_time"] == [turn.wall_s for turn in mine.turns]
    assert choice["idxs"] == choice["decoding_steps"] == [len(turn.emitted) for turn in mine.turns]
    assert choice["accept_lengths"] == [*mine.turns[0].emitted, *mine.turns[1].emitted]
    num_rounds = len(choice["accept_lengths"])
    assert choice["acceptance_rate"] == (sum(choice["accept_lengths"]) - num_rounds) / (7 * num_rounds)


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at": float("inf")},
        {"temperature": float("nan")},
        {"contestant": "\ud800"},
        {"repeat": True},
        {"turns": (replace(turn(Random(0)), emitted_at_s=(0.5,) * 99),)},
        {"turns": (replace(turn(Random(0)), wall_s=-1.0),)},
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="to 5"):
        to_line(record(5, **changes))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"version": 1', '"version": 2', "forerun.version is 2"),
        ('"index": 0', '"index": 0}, {"index": 1', "choices"),
        ('"idxs"', '"x"', None),
        ('"decoding_steps": [', '"decoding_steps": [1, ', "decoding_steps"),
        ('"accept_lengths": [', '"accept_lengths": [1, ', "accept_lengths"),
        ('"num_verified": [', '"num_verified": [1, ', "num_verified"),
        ('"emitted_at_s": [', '"emitted_at_s": [1, ', "emitted_at_s"),
        ('"is_near_tie": true', '"is_near_tie": 1', "match.is_near_tie is 1"),
        ('"forerun"', '"before"', "forerun is missing"),
    ],
)
def test_a_changed_line_is_read_right_or_named(tmp_path: Path, old: str, new: str, complaint: str | None) -> None:
    path = tmp_path / "a.jsonl"
    lines = our_lines(2)
    path.write_bytes(as_bytes([lines[0], lines[1].replace(old, new, 1)]))
    if complaint is None:
        assert read_records(path) == (record(0), record(1))
        return
    with pytest.raises(ConfigError, match=rf"a\.jsonl:2: .*{complaint}"):
        read_records(path)


def test_an_answer_given_twice_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_bytes([*our_lines(2), our_lines(1)[0]]))
    with pytest.raises(ConfigError, match=r"a\.jsonl:3: question_id 0, repeat 0 was answered in .*a\.jsonl:1 already"):
        read_records(path)


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first, last = (line.encode() for line in our_lines(2, num_turns=1))
    for length in (*range(0, len(last), 23), len(last) - 1):
        path.write_bytes(first + b"\n" + last[:length])
        RecordFile(path).close()
        assert path.read_bytes() == first + b"\n"


@pytest.mark.parametrize("num_bytes_left_out", [0, 1, 2, 500])
def test_a_file_is_gone_on_with_behind_a_whole_or_a_torn_line(tmp_path: Path, num_bytes_left_out: int) -> None:
    path = tmp_path / "a.jsonl"
    whole = as_bytes(our_lines(2))
    path.write_bytes(whole[: len(whole) - num_bytes_left_out])
    with closing(RecordFile(path)) as file:
        assert set(file.records) == ({(0, 0), (1, 0)} if num_bytes_left_out < 2 else {(0, 0)})
        for number in range(len(file.records), 3):
            file.append(record(number))
    assert read_records(path) == tuple(map(record, range(3)))


def test_the_disk_has_a_record_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill would not show it, since the system keeps what was written; a power cut would."""
    sizes: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (sync(number), sizes.append(os.fstat(number).st_size)))
    path = tmp_path / "a.jsonl"
    with closing(RecordFile(path)) as file:
        for number in range(3):
            file.append(record(number))
            assert sizes[number:] == [path.stat().st_size]
