"""Damaged files: each gives right records or an error that names file and line, and never anything else."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from forerun.bench.data.json_lines import parse
from forerun.bench.data.questions import read_questions
from forerun.bench.records.record_files import RecordFile, read_records, record_from, to_line
from forerun.core.errors import ConfigError
from tests.bench.samples import as_bytes, our_lines, question_lines, record

SAMPLES: Final = {"forerun": our_lines(3, num_turns=2), "questions": question_lines()}
DEEP: Final = json.loads("[" * 900 + "]" * 900)
VALUES: Final = (
    None, True, False, 0, 1, -1, 2, 10**18, 2**63, 10**400, 0.0, -0.5, 1e-320, 1e300, 1.7e308,
    float("nan"), float("inf"), "", "text", "\ud800", "\u2028\n", DEEP,
    [], [None], [[]], [1, 2], ["a"], {}, {"a": 1}, [True, 1.5, "x"],
)  # fmt: skip
STRANGE: Final = (
    b"", b"  ", b"null", b"[]", b"{}", b"\x00\x00", b"\xef\xbb\xbf{}", b"[" * 5000, b'{"a":' * 3000, b"1" * 5000,
    b'{"seed": 1e999}', b'{"seed": 0x1}', our_lines(1)[0].encode(), question_lines()[0].encode(),
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


def changed(line: bytes, random: Random) -> bytes:
    """With another value, or one missing, somewhere in the object."""
    values = json.loads(line)
    *way, key = random.choice(list(places(values)))
    holder = inside(values, tuple(way))
    if random.random() < 0.2:
        del holder[key]
    else:
        holder[key] = random.choice(VALUES)
    return json.dumps(values).encode()


def mutated(kind: str, random: Random) -> bytes:
    lines = [line.encode() for line in SAMPLES[kind]]
    number = random.randrange(len(lines))
    line = lines[number]
    place = random.randrange(len(line))
    match random.randrange(8):
        case 0:
            lines[number] = line[:place] + bytes([random.choice(b'{}[]",:09eE-\\\n\xff')]) + line[place + 1 :]
        case 1:
            lines[number] = line[:place] + line[place + random.choice((1, 2, 10, 10**6)) :]
        case 2:
            lines.insert(number, random.choice((*STRANGE, line)))
        case 3:
            del lines[number]
        case _:
            lines[number] = changed(line, random)
    return b"\n".join(lines) + random.choice((b"\n", b""))


def check_questions(path: Path) -> None:
    questions = read_questions(path)
    assert len({(type(question.question_id), question.question_id) for question in questions}) == len(questions)
    for question in questions:
        assert question.turns
        assert all(isinstance(turn, str) and turn.encode() for turn in question.turns)
        question.category.encode()


def check_records(path: Path) -> None:
    """What is read can be written again, a whole line gives its own record, and the file can be gone on with."""
    records = read_records(path)
    for given in records:
        assert record_from(parse("again:1", to_line(given).encode())) == given
    lines = set(path.read_bytes().split(b"\n"))
    beside = path.with_name("whole.jsonl")
    for line in SAMPLES["forerun"]:
        if line.encode() in lines:
            beside.write_bytes(as_bytes([line]))
            assert set(map(repr, read_records(beside))) <= set(map(repr, records))
    with closing(RecordFile(path)) as file:
        file.append(record(77))
    assert read_records(path) == (*records, record(77))


def outcome(kind: str, path: Path) -> str:
    """What became of a damaged file, whose error must name the place."""
    try:
        (check_questions if kind == "questions" else check_records)(path)
    except ConfigError as error:
        message = str(error)
        assert len(message) < 1000, message
        if not message.startswith((f"{path} holds no question", f"{path} holds no record")):
            number = message.removeprefix(f"{path}:").split(":")[0].split()[0]
            assert 1 <= int(number) <= path.read_bytes().count(b"\n") + 1, message
        return "error"
    return "result"


@pytest.mark.parametrize("num_files", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_damaged_file_gives_right_records_or_names_the_line(tmp_path: Path, num_files: int) -> None:
    path = tmp_path / "damaged.jsonl"
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
    for each in ((kind, end) for kind in SAMPLES for end in ("result", "error")):
        assert counts[each] > num_files / 100, f"the mutations show nothing: {counts}"


def test_the_undamaged_samples_are_fine(tmp_path: Path) -> None:
    for kind, lines in SAMPLES.items():
        path = tmp_path / f"{kind}.jsonl"
        path.write_bytes(as_bytes(lines))
        assert outcome(kind, path) == "result", kind


def test_a_mutation_of_every_column_is_seen_or_harmless(tmp_path: Path) -> None:
    """Leaving out any one key of a line of ours is an error, unless the key is for others or may be null."""
    free = {"idxs", "index", "acceptance_rate", "answer_id", "seed", "rounds", "match", "first_difference", "margin"}
    line = SAMPLES["forerun"][0]
    path = tmp_path / "a.jsonl"
    for way in places(json.loads(line)):
        values = json.loads(line)
        if not isinstance(way[-1], str) or "extra" in way[:-1]:
            continue
        del inside(values, way[:-1])[way[-1]]
        path.write_bytes(as_bytes([json.dumps(values)]))
        if way[-1] in free | {"extra"}:
            read_records(path)
            continue
        with pytest.raises(ConfigError, match=rf"a\.jsonl:1: .*{way[-1]}"):
            read_records(path)
