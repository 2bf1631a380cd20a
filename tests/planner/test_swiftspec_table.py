"""What was written down of SwiftSpec's table is what the planner says."""

import json
from pathlib import Path

import pytest

from forerun_lab.planner.plan import search
from forerun_lab.planner.roofline import machine_named
from forerun_lab.planner.swiftspec import PAIRS, READINGS, UNITS, Pair, profile_of
from forerun_lab.planner.synthetic import traces_for

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "planner_swiftspec_8gpus_202611.json"
PAIR = next(pair for pair in PAIRS if pair.target == "Qwen2-72B")  # that of table 7


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["8xH800", "8xH800-floor"])
def test_the_projection_that_was_written_down_is_made_again(machine: str) -> None:
    written = {
        (row["target"], row["times of"], row["accepted"]): row
        for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    }
    assert len(written) == 2 * len(PAIRS) * len(READINGS)
    for reading in READINGS:
        profile = profile_of(PAIR, machine_named(machine), reading)
        plans = search(profile, traces_for(reading.accepted), units=UNITS)
        made = {plan.split.name: f"{plan.outcome.tokens_per_s:.0f}" for plan in plans if plan.kind == "parallel"}
        row = written[PAIR.target, machine, f"{reading.accepted:.2f}"]
        assert made == {split: row[split] for split in made}
        assert len(made) == UNITS - 1


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.target)
def test_every_split_has_room_for_the_published_pairs(pair: Pair) -> None:
    profile = profile_of(pair, machine_named("8xH800"), READINGS[0])
    assert set(profile.target) == set(profile.draft) == set(range(1, UNITS + 1))
