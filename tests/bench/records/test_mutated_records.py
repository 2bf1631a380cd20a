"""Damaged files: each gives right records or an error that names file and line, and never anything else."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from forerun.bench.data.json_lines import parse
from forerun.bench.data.questions import read_questions
from forerun.bench.records.record_files import RecordFile, read_records, record_from, to_line
from forerun.core.errors import ConfigError
from tests.bench.samples import (
    as_bytes,
    our_lines,
    question_lines,
    record,
)

SAMPLES: Final = {
    "forerun": our_lines(3, num_turns=2),
    "questions": question_lines(),
}
VALUES: Final = (
    None, True, False, 0, 1, -1, 2, 10**18, 2**63, 10**400, 0.0, -0.5, 1e-320, 1e300, 1.7e308,
    float("nan"), float("inf"), "", "text", "\ud800", "\u2028\n",
    [], [None], [[]], [1, 2], ["a"], {}, {"a": 1}, [True, 1.5, "x"],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def some_value(random: Random) -> Any:
    if random.random() < 0.9:
        return random.choice(VALUES)
    value: Any = random.choice(VALUES)
    for _ in range(random.choice((3, 30, 300, 900))):
        value = [value] if random.random() < 0.5 else {"deep": value}
    return value


def change_value(lines: list[bytes], random: Random) -> None:
    """Another value, a value missing, doubled or moved, somewhere in one object."""
    number = random.randrange(len(lines))
    try:
        values = json.loads(lines[number])
    except (ValueError, RecursionError):
        return
    ways = list(places(values))
    if not ways:
        return
    *way, key = random.choice(ways)
    holder = inside(values, tuple(way))
    match random.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(holder[key])
        case 2:
            holder[key] = inside(values, random.choice(ways))  # may hold itself, which json refuses below
        case _:
            holder[key] = some_value(random)
    try:
        lines[number] = json.dumps(values).encode()
    except (ValueError, RecursionError):
        return


def flip_bytes(lines: list[bytes], random: Random) -> None:
    number = random.randrange(len(lines))
    line = bytearray(lines[number])
    for _ in range(random.randrange(1, 4)):
        if line:
            line[random.randrange(len(line))] = random.choice((random.randrange(256), *b'{}[]",:0919eE-\\\n'))
    lines[number] = bytes(line)


def cut_out(lines: list[bytes], random: Random) -> None:
    number = random.randrange(len(lines))
    start = random.randrange(len(lines[number]) + 1)
    end = start + random.choice((1, 2, 10, 10**6))
    lines[number] = lines[number][:start] + lines[number][end:]


def double_line(lines: list[bytes], random: Random) -> None:
    lines.insert(random.randrange(len(lines) + 1), random.choice(lines))


def drop_line(lines: list[bytes], random: Random) -> None:
    if len(lines) > 1:
        del lines[random.randrange(len(lines))]


def foreign_line(lines: list[bytes], random: Random) -> None:
    strange = (
        b"",
        b"  ",
        b"null",
        b"[]",
        b"{}",
        b"\x00\x00",
        b"\xef\xbb\xbf{}",
        b"[" * 5000,
        b'{"a":' * 3000,
        b"1" * 5000,
    )
    sample = random.choice(SAMPLES[random.choice(list(SAMPLES))]).encode()
    lines.insert(random.randrange(len(lines) + 1), random.choice((*strange, sample, sample, sample)))


def paste_number(lines: list[bytes], random: Random) -> None:
    """A number in a spelling that json.dumps would not use."""
    number = random.randrange(len(lines))
    digits = [index for index, byte in enumerate(lines[number]) if 48 <= byte <= 57]
    if digits:
        at = random.choice(digits)
        spelling = random.choice(
            (b"NaN", b"-Infinity", b"1e999", b"-0", b"1E-999", b"9" * 5000, b"0x1", b"01", b"-1", b"1.0")
        )
        lines[number] = lines[number][:at] + spelling + lines[number][at + 1 :]


MUTATIONS: Final[tuple[Callable[[list[bytes], Random], None], ...]] = (
    *(change_value,) * 6, flip_bytes, flip_bytes, cut_out, double_line, drop_line, foreign_line, paste_number,
)  # fmt: skip


def mutated(kind: str, random: Random) -> bytes:
    lines = [line.encode() for line in SAMPLES[kind]]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(MUTATIONS)(lines, random)
    data = b"\n".join(lines) + random.choice((b"\n", b"\n", b""))
    return data[: random.randrange(len(data) + 1)] if random.random() < 0.05 else data


def check_questions(path: Path) -> None:
    questions = read_questions(path)
    assert len({(type(question.question_id), question.question_id) for question in questions}) == len(questions)
    for question in questions:
        assert question.turns
        assert all(isinstance(turn, str) and turn.encode() for turn in question.turns)
        question.category.encode()


def check_records(path: Path) -> None:
    """What is read can be written again, and a line that no mutation touched gives its own record."""
    records = read_records(path)
    for given in records:
        assert record_from(parse("again:1", to_line(given).encode())) == given
    lines = set(path.read_bytes().split(b"\n"))
    beside = path.with_name("whole.jsonl")
    for line in SAMPLES["forerun"]:
        if line.encode() in lines:
            beside.write_bytes(as_bytes([line]))
            assert set(map(repr, read_records(beside))) <= set(map(repr, records))


def check_going_on(path: Path) -> None:
    """A damaged file of ours is refused, or can be appended to."""
    before = read_records(path)
    with closing(RecordFile(path)) as file:
        file.append(record(77))
    assert read_records(path) == (*before, record(77))


def outcome(kind: str, path: Path) -> str:
    """What became of a damaged file.

    Raises:
        AssertionError: an error did not name the place.
    """
    try:
        (check_questions if kind == "questions" else check_records)(path)
        if kind == "forerun":
            check_going_on(path)
    except ConfigError as error:
        message = str(error)
        is_empty = message.startswith((f"{path} holds no question", f"{path} holds no record"))
        assert is_empty or message.startswith(f"{path}:"), message
        if not is_empty:
            number = message.removeprefix(f"{path}:").split(":")[0].split()[0]
            assert 1 <= int(number) <= path.read_bytes().count(b"\n") + 1, message
        assert len(message) < 1000, message
        return "error"
    return "result"


def outcomes(folder: Path, *, num_files: int) -> Counter[tuple[str, str]]:
    path = folder / "damaged.jsonl"
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(num_files):
        random = Random(number)
        kind = random.choice(list(SAMPLES))
        data = mutated(kind, random)
        path.write_bytes(data)
        try:
            counts[kind, outcome(kind, path)] += 1
        except Exception as error:
            raise AssertionError(f"file {number}, of {kind}: {data[:3000]!r}") from error
    return counts


def check_outcomes(counts: Counter[tuple[str, str]]) -> None:
    """Neither outcome is rare, or the mutations would show nothing."""
    total = counts.total()
    for kind in SAMPLES:
        for end in ("result", "error"):
            assert counts[kind, end] > total / 100, counts


def test_a_damaged_file_gives_right_records_or_names_the_line(tmp_path: Path) -> None:
    check_outcomes(outcomes(tmp_path, num_files=500))


@pytest.mark.slow
def test_ten_thousand_damaged_files_give_right_records_or_name_the_line(tmp_path: Path) -> None:
    counts = outcomes(tmp_path, num_files=10_000)
    check_outcomes(counts)
    assert counts.total() == 10_000


def test_the_undamaged_samples_are_fine(tmp_path: Path) -> None:
    for kind, lines in SAMPLES.items():
        path = tmp_path / f"{kind}.jsonl"
        path.write_bytes(as_bytes(lines))
        assert outcome(kind, path) == "result", kind


def test_a_mutation_of_every_column_is_seen_or_harmless(tmp_path: Path) -> None:
    """Leaving out any one key of a line of ours is an error, unless the key is for others or may be null."""
    free = {
        "idxs",
        "index",
        "acceptance_rate",
        "answer_id",
        "seed",
        "rounds",
        "match",
        "first_difference",
        "margin",
        "extra",
    }
    line = SAMPLES["forerun"][0]
    path = tmp_path / "a.jsonl"
    for way in places(json.loads(line)):
        values = json.loads(line)
        if not isinstance(way[-1], str) or "extra" in way[:-1]:
            continue
        del inside(values, way[:-1])[way[-1]]
        path.write_bytes(as_bytes([json.dumps(values)]))
        if way[-1] in free:
            read_records(path)
            continue
        with pytest.raises(ConfigError, match=rf"a\.jsonl:1: .*{way[-1]}"):
            read_records(path)
