"""forerun demo: the same answer twice, with both times."""

import json
import re

import pytest

from tests.cli.conftest import Run, RunProcess


def sections(shown: str) -> list[str]:
    """What stands under each heading."""
    return [part.strip("\n") for part in re.split(r"^--- .* ---\n", shown, flags=re.MULTILINE)]


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.demo.REPEAT_S", 0.1)


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
    assert re.fullmatch(r"the same 24 tokens, [0-9.]+ times as fast \(each the best of [0-9]+ times\)", rows[2])
    plain_speed, drafted_speed = (float(row.partition(" s, ")[2].split()[0]) for row in rows[:2])
    assert float(rows[2].split()[4]) == pytest.approx(drafted_speed / plain_speed, rel=0.1)


def test_no_answer_is_drafted_from_the_same_one_before_it(run: Run, target: str) -> None:
    flags = ("--drafter", "recycling", "--fixed-widths", "-n", "24", "--ignore-eos", "--temperature", "0")
    alone = json.loads(run("chat", target, "-q", "one two one two", "--json", *flags).stdout)["stats"]["num_rounds"]
    shown = run("demo", target, "-p", "one two one two", *flags).stdout
    assert re.search(r"^recycling .* tokens/s, (\d+) passes", shown, re.M)[1] == str(alone)  # type: ignore[index]


def test_the_built_in_pair_shows_it_where_smollm2_is_not_here_and_it_says_so(run_process: RunProcess) -> None:
    finished = run_process("demo", "-n", "12")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.startswith("the built-in model writes, which knows nothing: smollm2 is not on this machine")
    assert "--- the prompt ---\ndef read_lines(path):" in finished.stdout
    assert "the same 12 tokens" in finished.stdout
