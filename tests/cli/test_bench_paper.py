"""forerun bench paper: from a command to a report, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forerun.cli.main import app
from forerun_lab.cli import bench_paper
from forerun_lab.cli.bench_report import has_matplotlib
from forerun_lab.papers.experiments import Line

Bench = Callable[..., Result]
needs_plots = pytest.mark.skipif(not has_matplotlib(), reason="needs matplotlib")


@pytest.fixture
def paper() -> Bench:
    return lambda *arguments: CliRunner().invoke(app, ["bench", "paper", *map(str, arguments)])


@needs_plots
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eagle",), "there is no paper 'eagle' here: choose swiftspec or swift"),
        (("swift", "--how", "paced"), "'paced' is not possible for swift: choose among measured"),
        (("swiftspec", "--how", "guessed"), "'guessed' is not possible for swiftspec"),
        (("swiftspec", "--pair", "gpt"), "no pair of SwiftSpec is named 'gpt'"),
        (("swift", "--model", "gpt"), "no model of SWIFT's tables is named 'gpt'"),
        (("swiftspec", "--stretch", "0"), "--stretch 0 must be above 0"),
        (("swiftspec", "--stretch", "inf"), "--stretch inf must be above 0"),
        (("swiftspec", "--how", ","), "--how names no kind of figure"),
        (("swiftspec", "--pair", ","), "',' must name pairs or models, each once"),
        (("swiftspec", "--pair", "llama3,LLAMA3"), "must name pairs or models, each once"),
        (("swiftspec", "--pair", "llama3,gpt"), "no pair of SwiftSpec is named 'gpt'"),
        (("swiftspec", "--model", "llama2-13b"), "--model has no effect on the experiments of swiftspec"),
        (("swift", "--pair", "llama3"), "--pair has no effect on the experiments of swift: leave it out"),
        (("swift", "--draft", "builtin-draft"), "--draft has no effect on the experiments of swift"),
        (("swift", "--draft-ranks", "1"), "--draft-ranks has no effect on the experiments of swift"),
        (("swiftspec", "--how", "paced", "--machine", "1xH200"), "the experiments divide 8 GPUs"),
        (("swiftspec", "--data", "mt_bank"), "there is no data set 'mt_bank'"),
        (("swiftspec", "--num-prompts", "0"), "--num-prompts 0 must be >= 1"),
        (("swift", "-n", "0"), "--max-new-tokens 0 must be >= 1"),
        (("swift", "--target-ranks", "0"), "--target-ranks 0 must lie in [1, 64]"),
        (("swiftspec", "--draft-ranks", "0"), "must lie in [1, 64]"),
    ],
)
def test_what_cannot_be_played_is_refused(paper: Bench, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    shown = paper(arguments[0], "--out", tmp_path / "x", "--target", "builtin", "--data", "builtin", *arguments[1:])
    assert shown.exit_code == 2, shown.output
    assert said in " ".join(shown.output.split())
    assert not (tmp_path / "x").exists()


@needs_plots
@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("report.md", "mine", "is not empty and holds no paper.json: give a new folder to --out"),
        ("paper.json", "mine", "paper.json cannot be read"),
        ("paper.json", "[]", "paper.json is not of forerun bench paper: give another folder to --out"),
    ],
)
def test_a_folder_with_other_files_is_left_as_it_is(
    paper: Bench, tmp_path: Path, file: str, text: str, said: str
) -> None:
    (tmp_path / file).write_text(text)
    shown = paper("swift", "--out", tmp_path, "--target", "builtin", "--data", "builtin")
    assert shown.exit_code == 2, shown.output
    assert said in " ".join(shown.output.split())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(file, text)]


@needs_plots
@pytest.mark.slow
def test_a_quick_run_ends_with_a_report_and_is_continued(paper: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("swiftspec", "--quick", "--target", "builtin", "--data", "builtin", "--num-prompts", 1, "-n", 8)
    shown = paper(*arguments, "--out", out, "--how", "projected")
    assert shown.exit_code == 0, shown.output
    assert "the planner's choice" in shown.stdout
    assert "347 tokens/s" in shown.stdout
    recorded = (out / "guesses.jsonl").stat().st_mtime_ns
    shown = paper(*arguments, "--out", out, "--how", "paced,projected")
    assert shown.exit_code == 0, shown.output
    assert (out / "guesses.jsonl").stat().st_mtime_ns == recorded
    sources = {line["source"] for line in json.loads((out / "report.json").read_text())}
    assert sources == {"paced", "projected"}
    other = paper(*arguments, "--out", out, "--pair", "qwen2")
    assert other.exit_code == 2
    assert "is of a run with subject 'llama3', this one has 'qwen2'" in " ".join(other.output.split())


def test_a_quick_run_takes_the_sets_that_are_here(tmp_path: Path) -> None:
    stand_ins = bench_paper.StandIns(data_folder=tmp_path)
    (tmp_path / "qa").mkdir()
    (tmp_path / "qa" / "question.jsonl").write_text('{"question_id": 1, "turns": ["Who?"]}\n')
    assert bench_paper.data_of("swiftspec", stand_ins, is_quick=False)[-1] == "qa"
    assert "qa" in bench_paper.data_of("swiftspec", stand_ins, is_quick=True)
    assert "builtin" not in bench_paper.data_of("swiftspec", stand_ins, is_quick=True)


@needs_plots
def test_several_pairs_have_one_table_of_what_the_paper_has() -> None:
    from forerun_lab.papers.report import Section

    line = Line(experiment="t", contestant="parallel", words="w", dataset="", source="projected", tokens_per_s=1.0)
    section = Section(name="t", title="T", lines=(line, replace(line, published_tokens_per_s=347.0)), pictures={})
    found = [bench_paper.Report(title=f"SwiftSpec: {name}", sections=[section], notes=()) for name in "ab"]
    whole = bench_paper.together(("a", "b"), found)
    assert [each.contestant for each in whole.sections[0].lines] == ["a: parallel", "b: parallel"]
    assert whole.title == "SwiftSpec: a, b"
