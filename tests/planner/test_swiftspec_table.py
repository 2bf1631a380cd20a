"""The projections that the documents print are those that the program prints."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from forerun.checkpoints.known_models import find_known
from forerun.cli.command_classes import PlainGroup, add_command
from forerun.core.drafter_config import DraftModel, Parallel
from forerun.core.errors import ConfigError
from forerun_lab.cli.plan import plan
from forerun_lab.planner.plan import USUAL_DEPTH, USUAL_WIDTH
from forerun_lab.planner.roofline import machine_named
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.swiftspec import PAIRS, READINGS, UNITS, Pair, pair_named, profile_of
from forerun_lab.planner.synthetic import traces_for
from tests.contracts.written_page import table_rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "paper_splits_8gpus_202611.md"
PAGE = ROOT / "docs" / "models.md"
USUAL = Parallel(draft=DraftModel(verify_width=USUAL_WIDTH, draft_width=USUAL_WIDTH, depth=USUAL_DEPTH, adaptive=False))
ACCEPTED = f"{READINGS[0].accepted:.2f}"


def printed(pair: Pair, machine: str) -> dict[str, str]:
    """A pair's row of the results at the published acceptance length."""
    table = (f"{machine}, {ACCEPTED} accepted", f"{pair.target} with {pair.draft}")
    (row,) = [row for row in table_rows(RESULTS) if (row["heading"], row["pair"]) == table]
    return row


@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_a_split_with_the_usual_tree_is_as_fast_as_the_documents_say(name: str) -> None:
    pair = pair_named(name)
    profile = profile_of(pair, machine_named("8xH800"), READINGS[0])
    row = printed(pair, "8xH800")
    units = 2  # so few for the target that the search keeps the usual tree
    costs = Costs.of(profile, target_units=units, draft_units=UNITS - units)
    outcome = simulate(traces_for(READINGS[0].accepted), USUAL, costs)
    assert f"{outcome.tokens_per_s:.0f}" == row[f"{units}+{UNITS - units}"]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["8xH800", "8xH800-floor"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_command_prints_the_tables_of_the_documents(tmp_path: Path, pair: Pair, machine: str) -> None:
    out = tmp_path / "plan.json"
    app = typer.Typer(cls=PlainGroup, pretty_exceptions_enable=False)
    add_command(app, plan)
    asked = ("--machine", machine, "--target", pair.target, "--accept-length", ACCEPTED, "--json", str(out))
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.stderr
    plans = json.loads(out.read_text())["plans"]
    made = {
        f"{entry['target_units']}+{entry['draft_units']}": f"{entry['tokens_per_s']:.0f}"
        for entry in plans
        if entry["kind"] == "parallel"
    }
    made["in turn"] = f"{max(entry['tokens_per_s'] for entry in plans if entry['kind'] == 'serial'):.0f}"
    row = printed(pair, machine)
    assert made == {name: row[name] for name in made}
    assert len(made) == UNITS
    best = next(iter(made))  # the fastest comes first
    assert row["the planner's choice"] == best
    assert row["the paper"] == f"{pair.target_units}+{pair.draft_units}: {pair.tokens_per_s:.0f}"
    (on_page,) = [row[machine] for row in table_rows(PAGE) if machine in row and row["target"] == pair.target]
    assert on_page == f"{best}: {made[best]}"
    speeds = {int(speed) for speed in re.findall(r"\d+", shown.stdout)}
    assert set(map(int, made.values())) <= speeds, "the table on the terminal has the same numbers"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.target)
def test_every_split_has_room_for_the_published_pairs(pair: Pair) -> None:
    profile = profile_of(pair, machine_named("8xH800"), READINGS[0])
    assert set(profile.target) == set(profile.draft) == set(range(1, UNITS + 1))


def test_every_pair_has_a_name_and_its_draft_is_the_known_one() -> None:
    for pair in PAIRS:
        assert all(pair_named(name.upper()) is pair for name in (pair.name, *pair.other_names))
        known = find_known(pair.target)
        assert known is not None
        assert known.draft == pair.draft
    with pytest.raises(ConfigError, match=r"choose among llama3\.3, llama3, deepseek, qwen2, r1-qwen, r1-llama"):
        pair_named("gpt")
