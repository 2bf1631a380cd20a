"""Skip sets on disk: what was written is read again, SWIFT's file is understood, and nothing else is believed."""

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.core.errors import ConfigError
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet
from forerun.drafting.layer_skip.set_files import NamedSet, read_sets, sets_beside, sets_in_cache, write_sets

NUM_LAYERS = 12
IDENTITY = "0123456789abcdef"


def skip(attention: list[int], mlp: list[int]) -> SkipSet:
    return frozenset([(layer, ATTENTION) for layer in attention] + [(layer, MLP) for layer in mlp])


SETS = [
    NamedSet(name="code", skipped=skip([3, 10], [1]), num_hits=812.25, num_rows=960.5),
    NamedSet(name="prose, 2nd", skipped=skip([], [2, 4, 6]), num_hits=0.0, num_rows=0.0),
    NamedSet(name="nothing", skipped=NOTHING, num_hits=3.0, num_rows=3.0),
]
# The names and numbers of layers of SWIFT's file; the sets themselves are made up.
PUBLISHED: dict[str, Any] = {
    "llama-2-13b_cnndm": {"attention": [2, 5, 38], "mlp": [4]},
    "llama-2-70b_cnndm": {"attention": [3, 77, 78], "mlp": [9, 10]},
    "llama-2-13b_chat_cnndm": {"attention": [7], "mlp": [1, 3]},
    "codellama-13b_humaneval": {"attention": [2, 6], "mlp": [8]},
    "codellama-34b_humaneval": {"attention": [12], "mlp": [46]},
}


def saved(path: Path, values: object) -> Path:
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def own(**changes: Any) -> dict[str, Any]:
    """A good file's values with `changes`; a change to ... removes the key."""
    one = {"name": "code", "attention": [3, 10], "mlp": [1], "hits": 8, "rows": 9.5}
    values = {"version": 1, "model": IDENTITY, "num_layers": NUM_LAYERS, "sets": [one], **changes}
    return {key: value for key, value in values.items() if value is not ...}


def own_set(**changes: Any) -> dict[str, Any]:
    """A good file's values with `changes` to its only set."""
    one = {**own()["sets"][0], **changes}
    return own(sets=[{key: value for key, value in one.items() if value is not ...}])


def refusal(path: Path, num_layers: int = NUM_LAYERS, identity: str | None = IDENTITY) -> str:
    with pytest.raises(ConfigError) as caught:
        read_sets(path, num_layers, identity)
    assert str(path) in str(caught.value)
    assert "forerun prepare" in str(caught.value)
    return str(caught.value)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "sets.json"
    for sets in (SETS, SETS[:1], []):
        write_sets(path, IDENTITY, NUM_LAYERS, sets)
        assert read_sets(path, NUM_LAYERS, IDENTITY) == sets
        assert read_sets(path, NUM_LAYERS) == sets
    assert [item.name for item in path.parent.iterdir()] == ["sets.json"]


@pytest.mark.parametrize(
    "named",
    [
        NamedSet(name="x", skipped=skip([0], []), num_hits=0.0, num_rows=0.0),
        NamedSet(name="x", skipped=skip([], [NUM_LAYERS - 1]), num_hits=0.0, num_rows=0.0),
        NamedSet(name="x", skipped=skip([1], []), num_hits=float("nan"), num_rows=1.0),
        NamedSet(name="\x1b[31m", skipped=skip([1], []), num_hits=0.0, num_rows=1.0),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, named: NamedSet) -> None:
    with pytest.raises(ConfigError):
        write_sets(tmp_path / "x", IDENTITY, NUM_LAYERS, [*SETS, named])
    assert list(tmp_path.iterdir()) == []


def test_another_models_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", own())
    assert "it is for the model '0123456789abcdef', this one is fedcba" in refusal(path, identity="fedcba")
    assert "it is for 12 layers, the model has 13" in refusal(path, num_layers=13)
    assert len(read_sets(path, NUM_LAYERS)) == 1


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        (own(version=2), "version 2, this forerun reads 1"),
        (own(sets=...), "missing or unknown: ['sets']"),
        (own(extra=1), "missing or unknown: ['extra']"),
        (own(num_layers="12"), "it is for '12' layers"),
        (own(model=7), "the model 7"),
        (own(sets={}), "sets is {}"),
        (own(sets=[3]), "a set is 3"),
        (own_set(hits=...), "a set is {"),
        (own_set(more=1), "a set is {"),
        (own_set(name=3), "the name of a set is 3"),
        (own_set(name="a\x1bb"), "printable text"),
        (own_set(hits=-1), "hits of a set is -1"),
        (own_set(hits=True), "hits of a set is True"),
        (own_set(rows=None), "rows of a set is None"),
        (own_set(rows=10**400), "rows of a set is 1000"),
        (own_set(hits=9.6), "9.6 hits of 9.5 rows"),
        (own_set(attention=3), "a list of layers"),
        (own_set(attention=[0]), "skips [0]"),
        (own_set(mlp=[-1]), "skips [-1]"),
        (own_set(mlp=[2.0]), "skips [2.0]"),
        (own_set(mlp=[True]), "skips [True]"),
        (own_set(mlp=[[]]), "skips [[]]"),
        (own_set(mlp=[4, 4]), "skips [4, 4]"),
        (own_set(mlp=[NUM_LAYERS - 1]), "skips layer 11 of 12"),
        ([], "it is []"),
        ("", "Expecting value"),
        ('{"version": 1, "version": 1}', "a key occurs twice"),
        ('{"a": ' * 10**5, "while decoding a JSON object"),
        ({}, "the model has 12 layers, the sets are none"),
        ({"a": 3}, "set 'a' is 3"),
        ({"a": {"attention": [1]}}, "a list of layers for attention and mlp"),
        ({"a": {"attention": [0], "mlp": []}}, "skips [0]"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, values: object, seen: str) -> None:
    assert seen in refusal(saved(tmp_path / "x", values))


def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent")
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\xfd")
    refusal(tmp_path / "x")


@pytest.mark.parametrize(
    ("num_layers", "names"),
    [
        (40, ["llama-2-13b_cnndm", "llama-2-13b_chat_cnndm", "codellama-13b_humaneval"]),
        (48, ["codellama-34b_humaneval"]),
        (80, ["llama-2-70b_cnndm"]),
    ],
)
def test_of_swifts_file_the_sets_of_a_size_are_read(tmp_path: Path, num_layers: int, names: list[str]) -> None:
    sets = read_sets(saved(tmp_path / "x", PUBLISHED), num_layers, IDENTITY)
    assert [named.name for named in sets] == names
    for named in sets:
        assert named.skipped == skip(PUBLISHED[named.name]["attention"], PUBLISHED[named.name]["mlp"])
        assert (named.num_hits, named.num_rows) == (0.0, 0.0)


def test_sets_have_a_place_beside_their_model_and_one_in_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    cache_folder = tmp_path / "cache"
    assert sets_beside(folder) == folder / "forerun_layer_skip.json"
    folder.mkdir()
    (folder / "a.Q4_0.gguf").touch()
    assert sets_beside(folder / "a.Q4_0.gguf") == folder / "a.Q4_0.forerun_layer_skip.json"
    assert sets_in_cache(cache_folder, IDENTITY) == cache_folder / "layer_skip" / f"{IDENTITY}.json"
