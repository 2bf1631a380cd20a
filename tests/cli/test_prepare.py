"""forerun prepare, run as a user runs it."""

import re
from pathlib import Path

import pytest
from typer.testing import Result

from forerun.checkpoints.open import open_source
from forerun.drafting.layer_skip.set_files import NamedSet, read_sets, sets_in_cache
from tests.cli.conftest import Run

FEW = ("--num-prompts", "2", "--max-new-tokens", "64", "--threads", "1")
ROW = re.compile(r"(?P<name>\S+(?: \S+)*) +(?P<hits>\d+) of (?P<rows>\d+) +(?P<chance>[\d.]+|-)  (?P<skips>\S.*)")
WRITTEN = re.compile(r"written to (.*)")


@pytest.fixture
def cache(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands keep what they find, once `run` has cleared the environment."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(shown: Result) -> Path:
    """The file that a command says it has written."""
    assert shown.exit_code == 0, shown.output
    found = WRITTEN.search(shown.stderr)
    assert found is not None, shown.stderr
    return Path(found[1])


def assert_table(shown: Result, sets: list[NamedSet]) -> None:
    """What is printed are the sets of the file, in their order."""
    head, *rows, summary = shown.stdout.splitlines()
    assert head.split() == ["set", "hits", "chance", "skips"]
    found = [match for row in rows if (match := ROW.fullmatch(row))]
    assert len(found) == len(rows) == len(sets)
    for row, named in zip(found, sets, strict=True):
        assert (row["name"], row["hits"], row["rows"]) == (named.name, f"{named.num_hits:.0f}", f"{named.num_rows:.0f}")
        layers = [int(number) for number in re.findall(r"\d+", row["skips"])]
        assert layers == [
            layer for kind in ("attention", "mlp") for layer, other in sorted(named.skipped) if other == kind
        ]
    assert re.fullmatch(
        r"\d+ evaluations, (settled|not settled: .*); the best set guesses right \d+% of the time and should decode at "
        r"\d\.\d\dx the speed of plain decoding",
        summary,
    )


def test_sets_are_found_printed_written_and_known_to_the_next_run(run: Run, cache: Path) -> None:
    first = run("prepare", "--layer-skip", *FEW)
    identity = open_source("builtin").identity()
    path = sets_in_cache(cache, identity)
    assert written(first) == path
    found = read_sets(path, 12, identity)
    assert sum(named.num_rows for named in found) >= 32.0
    assert_table(first, found)
    second = run("prepare", "--layer-skip", "--num-prompts", "1", "--max-new-tokens", "1", "--threads", "1")
    assert written(second) == path
    again = read_sets(path, 12, identity)
    assert_table(second, again)
    kept = {named.skipped for named in found} & {named.skipped for named in again}
    assert len(kept) >= len(found) - 1, "one may have made room for SWIFT's first set"
    assert again[0].num_rows > 0.0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no/such/model",), 5, "no/such/model"),
        (("builtin", "--num-prompts", "0"), 2, "--num-prompts 0 must be >= 1"),
        (("builtin", "--max-new-tokens", "0"), 2, "--max-new-tokens 0 must be >= 1"),
        (("builtin", "--max-new-tokens", "3000"), 2, "fits with 3000 new tokens"),
        (("builtin", "--temperature", "-1"), 2, "temperature -1.0 must be"),
        (("builtin", "--seed", "-1"), 2, "seed -1"),
        (("builtin", "--data", "nowhere.jsonl"), 2, "nowhere.jsonl does not exist"),
        (("builtin", "--data", "mt_bench"), 2, "mt_bench does not exist"),
        (("builtin", "--draft-weights", "int3"), 2, "int4"),
        (("builtin", "--device", "paced:"), 2, "write it like"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_one_message(
    run: Run, cache: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    shown = run("prepare", *arguments, "--layer-skip")
    assert shown.exit_code == code
    assert message in shown.stderr
    assert not cache.exists()
