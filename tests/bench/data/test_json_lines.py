"""Lines of JSON: what is read, and what an error says."""

import json
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.json_lines import JsonObject, read_objects, read_whole_lines


def write(folder: Path, data: bytes) -> Path:
    path = folder / "lines.jsonl"
    path.write_bytes(data)
    return path


def test_every_line_but_blank_ones_gives_its_object_and_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a": 1}\r\n\n  \n{"a": "\xe2\x80\xa8"}')
    lines = list(read_objects(path))
    assert [line.values for line in lines] == [{"a": 1}, {"a": "\u2028"}]
    assert [line.place for line in lines] == [f"{path}:1", f"{path}:4"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": ', "not valid JSON"),
        (b"[1]", "holds a JSON list"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"\x00\x00", "not valid JSON"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = write(tmp_path, b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        list(read_objects(path))
    assert str(caught.value).startswith(f"{path}:2 ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl does not exist"):
        list(read_objects(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_objects(tmp_path))


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    whole = b'{"a": 1}\n'
    last = json.dumps({"b": ["ü", {"c": 1.5e-3}], "d": "}"}, ensure_ascii=False).encode()
    for length in range(len(last)):
        objects, kept = read_whole_lines(write(tmp_path, whole + last[:length]))
        assert [line.values for line in objects] == [{"a": 1}]
        assert kept == whole


def test_a_broken_line_before_the_last_is_an_error_not_torn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lines\.jsonl:1"):
        read_whole_lines(write(tmp_path, b'{"a": 1\n{"a": 2}\n'))


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("integer", -1),
        ("integer", True),
        ("integer", 1.0),
        ("integer", 2**63),
        ("number", -0.5),
        ("number", float("inf")),
        ("number", 10**400),
        ("number", "1"),
        ("signed", False),
        ("text", 1),
        ("text", "\ud800"),
        ("identifier", 1.5),
        ("identifier", True),
        ("flag", 1),
        ("integers", [1, None]),
        ("integers", 1),
        ("numbers", ["1"]),
        ("flags", [0]),
        ("texts", "ab"),
        ("nested", []),
        ("objects", [[]]),
        ("integer", None),
    ],
)
def test_a_wrong_value_is_refused_with_place_key_and_value(method: str, value: object) -> None:
    line = JsonObject(place="file.jsonl:7", values={"key": value}, prefix="choices[0].")
    with pytest.raises(ConfigError, match=r"file\.jsonl:7: choices\[0\]\.key"):
        getattr(line, method)("key")
