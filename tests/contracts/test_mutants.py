"""Every fault of tests/mutants.toml can still be planted; `scripts/mutants` shows that the tests find it."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant["name"] for mutant in MUTANTS])
def test_the_place_of_each_fault_exists_once(mutant: dict[str, str]) -> None:
    text = (ROOT / "src" / f"{mutant['module'].replace('.', '/')}.py").read_text()
    assert text.count(mutant["before"]) == 1
    assert mutant["before"] != mutant["after"]
    assert all((ROOT / path).exists() for path in mutant["tests"])


def test_there_are_faults_in_forty_places() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant["module"] for mutant in MUTANTS}) >= 30
