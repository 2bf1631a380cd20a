"""forerun plan and forerun bench trace."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from forerun.cli.command_classes import PlainGroup, add_command
from forerun.core.drafter_config import BUILTIN_HEADS
from forerun_lab.cli.bench_trace import trace
from forerun_lab.cli.plan import plan
from forerun_lab.planner import calibrate
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.synthetic import SyntheticPair
from forerun_lab.planner.trace import write_traces
from tests.cli.conftest import Run

PACED = "paced:target=10ms@8,13ms@32;draft=2ms"
RunPlan = Callable[..., Result]


@pytest.fixture
def run_command() -> RunPlan:
    app = typer.Typer(cls=PlainGroup, pretty_exceptions_enable=False)
    add_command(app, plan)
    add_command(app, trace)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return call


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_traces(path, SyntheticPair(num_answers=2, num_tokens=40).traces())
    return path


def test_a_paced_machine_is_planned_and_labelled(run_command: RunPlan, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    plot = tmp_path / "plan.svg"
    shown = run_command(
        "plan", "--paced", PACED, "--trace", str(traces), "--json", str(out), "--plot", str(plot)
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "predicted for paced devices" in shown.stdout
    assert "parallel 1+1" in shown.stdout
    written = json.loads(out.read_text())
    assert written["source"] == "paced"
    assert {entry["kind"] for entry in written["plans"]} == {"parallel", "serial", "plain"}
    assert sorted(entry["adaptive"] for entry in written["plans"] if entry["kind"] == "serial") == [False, True]
    bounds = {entry["kind"]: entry["bound"] for entry in written["plans"]}
    assert bounds["serial"] is bounds["plain"] is None
    of_parallel = next(entry for entry in written["plans"] if entry["kind"] == "parallel")
    reached = of_parallel["tokens_per_s"] / of_parallel["bound"]["tokens_per_s"]
    assert f"{reached:.2f} of the bound; tokens/s lost to rounds 0, draft passes 0, wire " in shown.stdout
    found = of_parallel["bound"]["parts"]
    assert found["round"] == pytest.approx(sum(found[name] for name in ("pass", "miss wait", "hit wait", "beside")))
    assert [line.split()[:2] for line in shown.stdout.splitlines()[-2:]] == [["parallel", "1+1"], ["its", "bound"]]
    limits = [line for line in shown.stdout.splitlines() if "<=" in line]
    assert len(limits) == 1
    assert limits[0].startswith("serial 2 shared")
    assert limits[0].count("<=") == 3
    assert plot.exists()


def test_a_machine_that_is_not_here_is_called_a_projection(run_command: RunPlan, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shown = run_command(
        "plan", "--machine", "8xH800", "--target", "Meta-Llama-3-70B-Instruct", "--units", "2",
        "--trace", str(traces), "--json", str(out),
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "PROJECTED" in shown.stdout
    assert "Llama-3-70B, 4 bit with Llama-3.2-3B, 4 bit on 8xH800" in shown.stdout
    row = next(line for line in shown.stdout.splitlines() if line.startswith("parallel 1+1"))
    assert row.endswith("39.8+2.3")
    entry = next(entry for entry in json.loads(out.read_text())["plans"] if entry["kind"] == "parallel")
    assert {role: round(held / 1e9, 1) for role, held in entry["weights_bytes_per_unit"].items()} == {
        "target": 39.8,
        "draft": 2.3,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "--machine", "8xH800", "--accept-length", "2"),
        ("plan", "--paced", PACED, "--accept-length", "2"),
        ("plan", "--calibrate", "profile.json"),
        ("trace", "--out", "trace.jsonl"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
@pytest.mark.parametrize("head", BUILTIN_HEADS.values())
def test_a_draft_head_is_refused_and_what_measures_it_is_named(
    run_command: RunPlan, head: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_command(*arguments, "--draft", head)
    said = " ".join(shown.stderr.split())
    assert shown.exit_code == 2, said
    assert f"{head} is a draft head" in said
    assert f"forerun bench run --draft {head} --drafters none,draft_model --out FOLDER" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_draft_of_the_package_can_be_projected(run_command: RunPlan, traces: Path) -> None:
    machine = ("--machine", "8xH800", "--units", "2")
    shown = run_command("plan", *machine, "--draft", "smollm2-draft", "--trace", str(traces))
    assert shown.exit_code == 0, shown.output


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few repeats, and as many threads afterwards as before."""
    num_threads = torch.get_num_threads()
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.0)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.usefixtures("quickly")
def test_this_machine_is_measured_and_planned_in_one_call(
    run_command: RunPlan, tmp_path: Path, target: str, draft: str
) -> None:
    path = tmp_path / "profile.json"
    out = tmp_path / "plan.json"
    shown = run_command(
        "plan", "--target", target, "--draft", draft, "--threads", "1", "--dtype", "float32",
        "--calibrate", str(path), "--accept-length", "2", "--json", str(out),
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert f"wrote {path}" in shown.stderr
    assert "predicted from times measured on this machine" in shown.stdout
    profile = Profile.read(path)
    assert list(profile.target) == list(profile.draft) == [1]
    plain = next(entry for entry in json.loads(out.read_text())["plans"] if entry["kind"] == "plain")
    assert plain["round_s"] == pytest.approx(profile.target[1].step_s(1) + profile.serial_overhead_s)


@pytest.mark.parametrize("content", [None, "{", '{"version": 9}'], ids=["absent", "no JSON", "another version"])
def test_a_bad_profile_says_so(run: Run, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    shown = run("plan", "--accept-length", "2", "--profile", str(path))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("forerun: error: ")
    assert str(path) in shown.stderr
    assert "forerun plan --calibrate" in shown.stderr


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
        (
            ("--machine", "8xH800", "--target", "Qwen3-0.6B", "--draft", "auto"),
            "no draft is known for Qwen3-0.6B: name a",
        ),
        (("--calibrate", "profile.json", "--target-ranks", "1,x"), "such as 1,2,4"),
        (("--paced", PACED, "--accept-length", "2", "--tensor-parallel-size", "2"), "--calibrate FILE"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    run_command: RunPlan, arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_command("plan", *arguments)
    assert shown.exit_code == 2
    assert said in shown.stderr


def test_drafters_are_recorded_and_their_tokens_per_round_shown(
    run_command: RunPlan, tmp_path: Path, target: str
) -> None:
    out = tmp_path / "trace.jsonl"
    shown = run_command(
        "trace", "--target", target, "--out", str(out), "--drafters", "recycling,layer_skip, prompt_lookup",
        "--num-prompts", "1", "--max-new-tokens", "12", "--threads", "1",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["drafter", "rows"], ["layer_skip", "16"], ["recycling", "16"], ["prompt_lookup", "16"]
    ]  # fmt: skip
    assert all(float(row[2]) >= 1.0 for row in rows[1:])
    refused = run_command("plan", "--paced", PACED, "--trace", str(out))
    assert refused.exit_code == 2
    assert "--drafters draft_model" in refused.stderr


def test_the_known_draft_is_named_auto(run_command: RunPlan, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    shown = run_command("trace", "--draft", "auto", "--out", str(trace), "--num-prompts", "1", "--max-new-tokens", "8")
    assert shown.exit_code == 0, shown.output
    shown = run_command("plan", "--draft", "auto", "--machine", "8xH800", "--units", "2", "--trace", str(trace))
    assert shown.exit_code == 0, shown.output
    assert "builtin, 4 bit with builtin-draft, 4 bit on 8xH800" in shown.stdout


@pytest.mark.parametrize("drafters", ["", "draft_model,eagle"])
def test_a_drafter_that_is_not_recorded_is_refused(run_command: RunPlan, tmp_path: Path, drafters: str) -> None:
    shown = run_command("trace", "--out", str(tmp_path / "trace.jsonl"), "--drafters", drafters)
    assert shown.exit_code == 2
    assert "draft_model, layer_skip, recycling, prompt_lookup" in shown.stderr
