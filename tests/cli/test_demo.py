"""forerun demo: what drafting gains here, and an answer plain and drafted with both times."""

import json
import re
from unittest.mock import Mock

import pytest

from forerun.cli.comparison import SpeedComparison, Written
from forerun.core.pace import Pace
from forerun.engine.learnt import LearntFile
from forerun.speculation.referee.costs import RoundCosts
from tests.cli.conftest import Run


def sections(shown: str) -> list[str]:
    """What stands under each heading."""
    return [part.strip("\n") for part in re.split(r"^--- .* ---\n", shown, flags=re.MULTILINE)]


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.comparison.FEWEST", 2)
    monkeypatch.setattr("forerun.cli.comparison.ENOUGH_S", 0.1)


def test_the_answer_comes_plain_and_drafted_with_both_times_and_their_ratio(run: Run, target: str) -> None:
    flags = ("--drafter", "prompt_lookup", "-n", "24", "--ignore-eos", "-p", "one two one two one two")
    shown = run("demo", target, *flags)
    assert shown.exit_code == 0, shown.output
    before, prompt, plain, rest = sections(shown.stdout)
    assert (before, prompt) == ("", "one two one two one two")
    drafted, _, numbers = rest.rpartition("\n\n")
    assert plain == drafted
    rows = numbers.splitlines()
    of_plain = r"plain +[0-9.]+ s, [0-9]+ tokens/s, 24 passes; first token after .*"
    assert re.fullmatch(of_plain, rows[0])
    assert rows[1].startswith("prompt_lookup")
    assert re.fullmatch(
        r"the same 24 tokens, [0-9.]+ times as fast \([0-9]+ times each, alternating slice by slice\)", rows[2]
    )
    plain_speed, drafted_speed = (float(row.partition(" s, ")[2].split()[0]) for row in rows[:2])
    assert float(rows[2].split()[4]) <= 1.1 * drafted_speed / plain_speed + 0.01


def test_no_answer_is_drafted_from_the_same_one_before_it(run: Run, target: str) -> None:
    flags = ("--drafter", "recycling", "--fixed-widths", "-n", "24", "--ignore-eos", "--temperature", "0")
    alone = json.loads(run("chat", target, "-q", "one two one two", "--json", *flags).stdout)["stats"]["num_rounds"]
    shown = run("demo", target, "-p", "one two one two", *flags).stdout
    assert re.search(r"^recycling .* tokens/s, (\d+) passes", shown, re.M)[1] == str(alone)  # type: ignore[index]


@pytest.mark.parametrize(
    ("rows_s", "said"), [(4.6, "takes 4.6 times as long as writing one\n"), (1.2, "too few tokens")]
)
def test_where_nothing_gains_it_says_so_and_why(
    run: Run, target: str, monkeypatch: pytest.MonkeyPatch, rows_s: float, said: str
) -> None:
    pace = Pace(steps=((1, 1e3), (2, 1e3 * rows_s), (4, 1e3 * rows_s)))  # beside which what rounds take is nothing
    monkeypatch.setattr(LearntFile, "measure", lambda self, target, widths, budget_s=0.0: pace)
    monkeypatch.setattr("forerun.cli.comparison.LEAST_GAIN", 1e9)
    monkeypatch.setattr(RoundCosts, "measure", lambda self, num_rows, seconds, num_rounds=1: None)
    shown = run("demo", target, "--drafter", "auto", "-n", "24", "--ignore-eos", "-p", "one two one two one two")
    assert shown.exit_code == 0, shown.output
    assert "--- with the drafter" not in shown.stdout
    reason = "drafting does not pay for this text on this machine, so it is decoded plainly: verifying 4 tokens"
    assert reason in shown.stdout
    assert "With qwen2.5-coder:1.5b guesses made code 1.9 to 2.6 times as fast" in shown.stdout.splitlines()[-1]
    assert "the same 24 tokens" not in shown.stdout
    assert said in shown.stdout


def side(num_rounds: int, slices_s: list[list[float]]) -> Written:
    """Answers of 90 tokens that took so many rounds."""
    stats = Mock(tokens_per_round=90 / num_rounds)
    return Written(Mock(), [Mock(stats=stats)] * len(slices_s), slices_s)


def test_stalls_of_single_slices_decide_nothing() -> None:
    plain = side(90, [[1.0, 1.0, 2.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    drafted = side(30, [[0.5, 0.5, 0.5], [0.5, 0.5, 1.0], [0.5, 0.5, 0.5]])
    found = SpeedComparison(plain, drafted)
    assert found.ratio == 2.0
    assert found.gains


def test_the_built_in_pair_shows_it_where_smollm2_is_not_here_and_it_says_so(run: Run) -> None:
    finished = run("demo", "-n", "12")
    assert finished.exit_code == 0, finished.stderr
    assert finished.stderr.startswith(
        "using the tiny built-in model, which knows no facts: smollm2 is not on this machine"
    )
    assert "--- the prompt ---\ndef read_lines(path):" in finished.stdout
    assert "the same 12 tokens" in finished.stdout or "decoded plainly" in finished.stdout  # as the machine is now
