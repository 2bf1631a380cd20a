"""forerun plan and forerun bench trace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from forerun.cli.bench_trace import trace
from forerun.cli.plan import plan
from forerun.core.profile import Profile
from forerun.core.trace import read_traces, write_traces
from forerun.planner.synthetic import SyntheticPair
from tests.planner.paces import flat

PACED = "paced:target=10ms@8,13ms@32;draft=2ms"
RunPlan = Callable[..., Result]


@pytest.fixture
def run_command() -> RunPlan:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("plan")(plan)
    app.command("trace")(trace)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return call


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_traces(path, SyntheticPair(num_answers=2, num_tokens=40).traces())
    return path


def test_a_paced_machine_is_planned_and_labelled(run_command: RunPlan, traces: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "plan.json", tmp_path / "plan.svg"
    shown = run_command(
        "plan", "--paced", PACED, "--trace", str(traces), "--json", str(out), "--plot", str(plot)
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "predicted for paced devices" in shown.stdout
    assert "parallel 1+1" in shown.stdout
    written = json.loads(out.read_text())
    assert written["source"] == "paced"
    assert {entry["kind"] for entry in written["plans"]} == {"parallel", "serial", "plain"}
    assert plot.exists()


def test_a_machine_that_is_not_here_is_called_a_projection(run_command: RunPlan, traces: Path) -> None:
    shown = run_command(
        "plan", "--machine", "8xH800", "--target", "Llama-3-70B", "--draft", "Llama-3.2-3B", "--units", "2",
        "--trace", str(traces),
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "PROJECTED" in shown.stdout
    assert "Llama-3-70B, 4 bit" in shown.stdout


def test_a_profile_in_a_file_is_used(run_command: RunPlan, traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    paces = {1: flat(10.0), 2: flat(7.0)}
    Profile(source="measured", unit="core", target=paces, draft=paces).write(path)
    shown = run_command("plan", "--profile", str(path), "--trace", str(traces))
    assert "predicted from times measured on this machine" in shown.stdout
    assert "2 shared" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--machine"),
        (("--machine", "8xH800", "--paced", PACED), "one of"),
        (("--paced", PACED), "--accept-length"),
        (("--paced", "paced:target=3ms", "--accept-length", "2"), "draft="),
        (("--machine", "9xH9", "--accept-length", "2"), "8xH800"),
        (("--machine", "8xH800", "--target", "Llama-9", "--accept-length", "2"), "Llama-3-70B"),
        (("--paced", PACED, "--trace", "absent.jsonl"), "forerun bench trace"),
        (("--profile", "absent.json", "--accept-length", "2"), "--calibrate"),
    ],
)
def test_what_is_missing_or_wrong_is_said(run_command: RunPlan, arguments: tuple[str, ...], said: str) -> None:
    shown = run_command("plan", *arguments)
    assert shown.exit_code == 2
    assert said in shown.stderr


def test_answers_of_one_temperature_are_taken(run_command: RunPlan, traces: Path) -> None:
    assert run_command("plan", "--paced", PACED, "--trace", str(traces), "--temperature", "0").exit_code == 0
    shown = run_command("plan", "--paced", PACED, "--trace", str(traces), "--temperature", "0.7")
    assert shown.exit_code == 2
    assert "only of 0" in shown.stderr


def test_a_trace_of_the_built_in_pair_is_recorded(run_command: RunPlan, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    shown = run_command(
        "trace", "--out", str(out), "--num-prompts", "2", "--max-new-tokens", "8", "--temperature", "0.5",
        "--threads", "1",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    recorded = read_traces(out)
    assert [item.temperature for item in recorded] == [0.5, 0.5]
    assert f"--trace {out}" in shown.stderr
