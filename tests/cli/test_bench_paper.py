"""forerun bench paper: from a command to a report, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forerun.cli.main import app
from forerun.core.errors import ConfigError
from forerun_lab.cli import bench_paper
from forerun_lab.cli.bench_report import has_matplotlib
from forerun_lab.papers.experiments import Line

Bench = Callable[..., Result]
SPEEDS = {"4+4": 250.0, "5+3": 260.0}
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
        (("swiftspec", "--how", "measured", "--draft-ranks", "0"), "must lie in [1, 64]"),
        (
            ("swiftspec", "--how", "projected", "--stretch", "3"),
            "--stretch has no effect on figures that are projected",
        ),
        (("swiftspec", "--how", "measured", "--stretch", "3"), "leave it out, or add paced to --how"),
        (("swiftspec", "--how", "measured", "--machine", "8xH100"), "--machine has no effect on figures that are meas"),
        (("swiftspec", "--dtype", "float32"), "--dtype has no effect on figures that are paced or projected: leave it"),
        (("swiftspec", "--draft-ranks", "2"), "--draft-ranks has no effect on figures that are paced or projected"),
        (("swiftspec", "--target-ranks", "2"), "--target-ranks has no effect on figures that are paced or projected"),
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
    shown = paper(*arguments, "--out", out, "--how", "paced")
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

    line = Line(experiment="t", contestant="parallel 4+4", words="w", dataset="", source="projected", tokens_per_s=1.0)
    planned = replace(line, is_planned=True)
    lines = (
        replace(line, published_tokens_per_s=347.0),
        *(replace(planned, contestant="serial 8 shared", tokens_per_s=speed) for speed in (200.0, 210.0)),
        *(replace(planned, contestant=f"parallel {split}", tokens_per_s=speed) for split, speed in SPEEDS.items()),
    )
    section = Section(name="t", title="T", lines=lines, pictures={})
    found = [bench_paper.Report(title=f"SwiftSpec: {name}", sections=[section], notes=()) for name in "ab"]
    whole = bench_paper.together(("a", "b"), found)
    assert [each.contestant for each in whole.sections[0].lines] == ["a: parallel 4+4", "b: parallel 4+4"]
    assert whole.title == "SwiftSpec: a, b"
    (table,) = whole.sections[1].tables.values()
    assert table == [
        ["pair", "in turn", "4+4", "5+3", "the planner's choice", "the paper"],
        *([name, "210", "250", "260", "5+3", "4+4: 347"] for name in "ab"),
    ]


@needs_plots
def test_a_run_that_is_continued_keeps_what_earlier_kinds_of_figures_depend_on(tmp_path: Path) -> None:
    from forerun_lab.papers.play import PaperRequest

    projected = PaperRequest(
        paper="swiftspec", subject="llama3", target="builtin", draft="builtin-draft", data=("builtin",), num_prompts=1,
        max_new_tokens=8, sources=("projected",), stretch=2.0, machine="8xH800", is_quick=True, settings={},
        draft_ranks=1, out=tmp_path, cache=tmp_path, data_folder=None, command="first",
    )  # fmt: skip
    assert projected.continued() == projected, "nothing is there"
    projected.keep()
    paced = replace(projected, sources=("paced",), stretch=3.0).continued()
    assert (paced.sources, paced.stretch) == (("paced", "projected"), 3.0), "no figure there depended on the stretch"
    paced.keep()
    measured = replace(projected, sources=("measured",), machine="8xH100", settings={"dtype": "float32"}).continued()
    assert measured.sources == ("measured", "paced", "projected")
    assert (measured.machine, measured.stretch) == ("8xH800", 3.0), "this command says nothing about them"
    assert measured.settings == {"dtype": "float32"}
    for name, value in (("machine", "8xH100"), ("stretch", 2.0), ("target", "smollm2")):
        with pytest.raises(ConfigError, match=f"is of a run with {name} "):
            replace(paced, **{name: value}).continued()
