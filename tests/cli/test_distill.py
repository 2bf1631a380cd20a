"""forerun distill: what it refuses before anything slow, and a whole short run."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forerun.cli.flag_values import read_duration
from forerun.cli.main import app
from forerun.core.errors import ConfigError
from forerun.core.locks import hold


def run(target: str, out: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["distill", target, "--out", str(out), "--threads", "1", *flags])


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("45s", 45), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert read_duration(text, flag="--time") == seconds


@pytest.mark.parametrize("text", ["", "2 h", "h", "-3m", "1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a time such as"):
        read_duration(text, flag="--time")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--time", "1s"], "--time 1 must be >= 5"),
        (["--layers", "0"], "--layers 0 must be >= 1"),
        (["--hidden-size", "7"], "--hidden-size 7 must be a multiple of 8"),
        (["--text", "/no/such/file"], "/no/such/file cannot be read as text"),
        (["--questions", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["--time", "9999999h"], "MiB free"),
        (["--chat-template", "{{ raise_exception('no') }}"], "the chat template refused"),
        (["--chat-template", "{{ messages[0].content | upper }}x"], "give questions with --questions"),
    ],
)
def test_faulty_settings_end_before_anything_is_made(tmp_path: Path, target: str, flags: list[str], said: str) -> None:
    out = tmp_path / "draft"
    result = run(target, out, *flags)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not out.exists()


def test_a_folder_with_something_else_and_one_that_is_in_use_are_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "note.txt").write_text("mine")
    assert "is not empty and holds no run" in run(target, tmp_path).output
    out = tmp_path / "draft"
    with hold(out / "distill"):
        assert "another process writes to" in " ".join(run(target, out).output.split())


def test_a_run_makes_a_draft_that_says_what_it_brings_and_refuses_to_become_another(
    tmp_path: Path, target: str, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    questions = tmp_path / "questions.jsonl"
    text.write_text("The fox said: naïve café! " * 20)
    questions.write_text('{"turns": ["Who are you?"]}\n')
    out = tmp_path / "draft"
    flags = ("--layers", "1", "--text", str(text), "--questions", str(questions))
    made = run(target, out, "--time", "5s", *flags)
    assert made.exit_code == 0, made.output
    assert "| 0 |" in made.output
    assert "| tokens per round, prompt lookup alone |" in made.output
    assert "the draft is measured\n" in made.output
    report = json.loads((out / "distill" / "report.json").read_text())
    assert [worth["num_identical"] for worth in report["worth"]] == [worth["num_texts"] for worth in report["worth"]]
    speedups = [worth["speedup"] for worth in report["worth"] if worth["speedup"] is not None]
    is_slow = bool(speedups) and max(speedups) < 1.0
    assert ("answers took longer with the draft" in " ".join(made.output.split())) == is_slow
    picture = out / "distill" / "curves.png"
    card = (out / "README.md").read_text()
    assert "licence" in card
    assert "curves.png" in card
    assert picture.stat().st_size > 1000
    texts = report["num_texts"]
    assert "layers 1, not 2" in " ".join(run(target, out, "--layers", "2").output.split())
    assert "holds a draft of" in " ".join(run(plain, out, "--layers", "1").output.split())
    picture.unlink()
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    again = run(target, out, "--time", "6s", *flags)
    assert again.exit_code == 0, again.output
    assert "no picture of the curves was drawn" in " ".join(again.output.split())
    assert "curves.png" not in (out / "README.md").read_text()
    assert json.loads((out / "distill" / "report.json").read_text())["num_texts"] > texts
