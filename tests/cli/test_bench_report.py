"""forerun bench report and compare, as far as a terminal and an exit code show them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forerun.cli.main import app
from forerun_lab.cli import bench_report
from forerun_lab.cli.bench_report import has_matplotlib
from tests.bench.sample_run import write_sample_run

SMALL = {"datasets": ("qa",), "contestants": ("none", "parallel"), "num_prompts": 6, "repeats": 1, "num_tokens": 24}
Bench = Callable[..., Result]


@pytest.fixture
def bench() -> Bench:
    return lambda *arguments: CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sample_run(tmp_path / "a", **SMALL)


def test_a_folder_without_flags_gets_all_reports(bench: Bench, folder: Path) -> None:
    shown = bench("report", folder)
    assert shown.exit_code == 0, shown.output
    assert "parallel writes" in shown.stdout
    assert json.loads((folder / "report.json").read_text())["version"] == 2
    assert (folder / "report.md").read_text().startswith("**parallel writes")
    assert (folder / "report.csv").read_text().startswith("dataset,contestant,temperature,")
    assert (folder / "report.html").exists() == has_matplotlib()
    assert (folder / "pictures" / "accepted.svg").exists() == has_matplotlib()


def test_with_flags_only_the_named_files_are_written(bench: Bench, folder: Path, tmp_path: Path) -> None:
    shown = bench("report", folder, "--markdown", tmp_path / "x.md")
    assert shown.exit_code == 0
    assert (tmp_path / "x.md").exists()
    assert not (folder / "report.json").exists()


def test_parallel_drafting_is_compared_with_the_bound_of_a_plan(bench: Bench, folder: Path, tmp_path: Path) -> None:
    bound = {"tokens_per_s": 400.0, "lost_to": {"rounds": 30.0, "wire": 10.0}}
    plans = [{"tokens_per_s": 1.0, "bound": None}, {"tokens_per_s": 360.0, "bound": bound}]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"temperatures": [0.0], "plans": plans}))
    shown = bench("report", folder, "--plan", plan, "--json", tmp_path / "x.json")
    assert shown.exit_code == 0, shown.output
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    kept = {"dataset": None, "contestant": "parallel", "temperature": 0.0}.items()
    (speed,) = [row["speed"]["value"] for row in rows if kept <= row.items()]
    said = f"{speed:.0f} tokens/s, {speed / 400:.2f} of the bound of 400; the plan's 360 lose 30 to rounds, 10 to wire"
    assert f"parallel at temperature 0: {said}" in shown.stdout
    for content, needed in (
        (
            {"temperatures": [0.3], "plans": plans},
            "is for answers at temperature 0.3, the run has parallel drafting at 0",
        ),
        ({"temperatures": [0.0], "plans": plans[:1]}, "holds no plan with a bound"),
        ([], "holds no plan with a bound"),
    ):
        plan.write_text(json.dumps(content))
        refused = bench("report", folder, "--plan", plan, "--json", tmp_path / "y.json")
        assert refused.exit_code == 2
        assert needed in " ".join(refused.output.split())
        assert not (tmp_path / "y.json").exists()


def test_without_matplotlib_everything_but_the_page_works(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "has_matplotlib", lambda: False)
    shown = bench("report", folder)
    assert shown.exit_code == 0
    assert "pip install 'matplotlib" in shown.stderr
    assert (folder / "report.md").exists()
    assert not (folder / "report.html").exists()
    for asked in (bench("report", folder, "--html", folder / "x.html"), bench("report", folder, "--svg", folder / "x")):
        assert asked.exit_code == 2
        assert "pip install 'matplotlib" in asked.stderr


def test_exit_codes_of_compare(bench: Bench, folder: Path, tmp_path: Path) -> None:
    slow = write_sample_run(tmp_path / "b", **SMALL, slowdown=1.5, seed=1)
    assert bench("report", folder, "--json", tmp_path / "a.json").exit_code == 0
    same = bench("compare", tmp_path / "a.json", folder)
    assert (same.exit_code, "not slower" in same.stdout) == (0, True), same.output
    slower = bench("compare", tmp_path / "a.json", slow)
    assert (slower.exit_code, "slower: " in slower.stdout) == (1, True), slower.output
    assert bench("compare", slow, tmp_path / "a.json").exit_code == 0
    assert bench("compare", tmp_path / "a.json", slow, "--tolerance", "0.6").exit_code == 0
