"""Profiles: what a file keeps, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun.core.errors import ConfigError
from forerun.core.pace import Pace
from forerun_lab.planner.profile import OVERHEADS, Profile

PROFILE = Profile(
    source="measured",
    unit="core",
    target={1: Pace(steps=((1, 0.004), (8, 0.0061))), 2: Pace(steps=((1, 0.003),))},
    draft={1: Pace(steps=((4, 0.0005),))},
    serial_overhead_s=0.0004,
    parallel_overhead_s=0.0005,
    expansion_overhead_s=0.0002,
    worker_expansion_overhead_s=0.0003,
    about={"target": "builtin", "torch": "2"},
)


def written(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A good file, and what is in it."""
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    return path, json.loads(path.read_text())


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "profile.json"
    for profile in (PROFILE, replace(PROFILE, draft={}, about={}, source="stated")):
        profile.write(path)
        assert Profile.read(path) == profile
    assert [item.name for item in path.parent.iterdir()] == ["profile.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"profile\.json cannot be written .*: name another file"):
        PROFILE.write(tmp_path / "file" / "profile.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b'"profile"', b"null", b"\xff\xfe{}", b"{}", b"[" * 100_000],
    ids=["empty", "cut", "list", "number", "text", "null", "not utf-8", "nothing in it", "too deep"],
)
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"profile\.json is not a profile .*: make one with forerun plan --calibrate"):
        Profile.read(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown_overhead_s", 0.1),
        ("version", 2),
        ("version", "1"),
        ("source", "guessed"),
        ("source", None),
        ("source", ["measured"]),
        ("target", {}),
        ("target", []),
        ("target", None),
        ("target", {"1": []}),
        ("target", {"1": [[1]]}),
        ("target", {"1": [[1, 0.1, 2]]}),
        ("target", {"1": 0.1}),
        ("target", {"1": [["one", 0.1]]}),
        ("target", {"1": [[1, "soon"]]}),
        ("target", {"1": [[1, None]]}),
        ("target", {"1": [[0, 0.1]]}),
        ("target", {"1": [[float("inf"), 0.1]]}),
        ("target", {"1": [[1, float("nan")]]}),
        ("target", {"1": [[1, -0.1]]}),
        ("target", {"1": [[1, 0.2], [2, 0.1]]}),
        ("target", {"one": [[1, 0.1]]}),
        ("target", {"0": [[1, 0.1]]}),
        ("draft", {"-1": [[1, 0.1]]}),
        ("draft", {"1": [[1, float("inf")]]}),
        ("draft", None),
        ("about", None),
        ("about", "much"),
        *((name, value) for name in OVERHEADS for value in (-0.1, float("nan"), float("inf"), "none", None, [0.1])),
    ],
)
def test_a_damaged_value_is_refused_with_the_files_name(tmp_path: Path, key: str, value: object) -> None:
    path, values = written(tmp_path)
    path.write_text(json.dumps(values | {key: value}))
    with pytest.raises(ConfigError, match=r"profile\.json is not a profile .*: make one with forerun plan --calibrate"):
        Profile.read(path)
