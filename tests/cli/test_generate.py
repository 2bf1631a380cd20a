"""forerun generate, run as a user runs it."""

import json
import signal
import subprocess
from dataclasses import fields
from pathlib import Path
from shutil import copytree

import pytest

from forerun.core.steps import GenerationStats, RoundNumbers
from tests.cli.conftest import Run, command, environment
from tests.marks import rest_slow

SAMPLED = ("--prompt", "Once upon", "--max-new-tokens", "24", "--temperature", "0.7", "--seed", "1", "--ignore-eos")


def test_json_is_one_object_with_text_ids_and_all_statistics(run: Run, target: str, draft: str) -> None:
    finished = run(
        *("generate", target, "--draft", draft, "--drafter", "draft_model", "--dtype", "float32", "--json"),
        *("--kernels", "torch"),  # of missing native ones, one is told
        *SAMPLED,
    )
    assert finished.exit_code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert set(result) == {"done", "text", "token_ids", "finish_reason", "seed", "stats", "engine"}
    assert result["engine"] == {
        "model": target, "num_parameters": 84288, "dtype": "float32", "kernels": "fused", "device": "cpu",
        "num_threads": 1, "drafter": "draft_model", "draft": draft, "max_length": 512, "cache": "model",
        "cache_bytes": result["engine"]["cache_bytes"],
    }  # fmt: skip
    assert result["stats"]["first_token_s"] > result["stats"]["prefill_s"] > 0
    assert set(result["stats"]) == {field.name for field in fields(GenerationStats)}
    assert (len(result["token_ids"]), result["finish_reason"], result["seed"]) == (24, "length", 1)
    assert finished.stderr == ""


def test_a_line_of_json_has_the_numbers_of_its_round(run: Run, target: str, draft: str) -> None:
    arguments = ("generate", target, "--draft", draft, "--drafter", "draft_model", "--fixed-widths", "--json-lines")
    *steps, whole = map(json.loads, run(*arguments, *SAMPLED).stdout.splitlines())
    assert {tuple(step) for step in steps} == {("done", "text", "token_ids", "stats")}
    assert {tuple(step["stats"]) for step in steps} == {tuple(field.name for field in fields(RoundNumbers))}
    assert [step["stats"]["num_accepted"] + 1 for step in steps[:-1]] == [len(step["token_ids"]) for step in steps[:-1]]
    for name in ("draft_s", "verify_s"):
        assert sum(step["stats"][name] for step in steps) == pytest.approx(whole["stats"][name])


@pytest.mark.parametrize(
    "flags", rest_slow([("--search", "paper", "--draft-weights", "int8", "--fixed-widths"), ()], 1)
)
def test_the_built_in_target_drafts_for_itself(
    run: Run, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.cli.engine_loading.cache_folder", lambda: tmp_path)
    arguments = ("generate", "--json", "--threads", "1", *SAMPLED)
    expected = run(*arguments, "--drafter", "none")
    found = run(*arguments, "--drafter", "layer_skip", *flags)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["token_ids"] == json.loads(expected.stdout)["token_ids"]
    if "--fixed-widths" in flags:
        assert json.loads(found.stdout)["stats"]["num_accepted"] > 0


@pytest.mark.parametrize("flags", [(), ("--no-stream",), ("--stats",)])
def test_the_text_goes_to_stdout_and_one_line_of_numbers_to_stderr(
    run: Run, target: str, draft: str, flags: tuple[str, ...]
) -> None:
    drafted = ("--draft", draft, "--fixed-widths")  # else this small draft may find that it does not pay
    text = json.loads(run("generate", target, *drafted, "--json", *SAMPLED).stdout)["text"]
    shown = run("generate", target, *drafted, *flags, *SAMPLED)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.rstrip("\n") == text.rstrip("\n")
    numbers = [line for line in shown.stderr.splitlines() if "tokens/s" in line]
    assert len(numbers) == 1
    assert all(part in numbers[0] for part in ("24 tokens", "first token after"))
    assert all((part in numbers[0]) == ("--stats" in flags) for part in ("drafted tokens accepted", "seed 1"))


def test_sampling_flags_reach_the_sampler(run: Run, target: str) -> None:
    forced = run("generate", target, "-p", "x", "-n", "5", "--json", "--logit-bias", "40=1000", "--logit-bias", "41=-5")
    assert json.loads(forced.stdout)["token_ids"] == [40] * 5
    text = json.loads(forced.stdout)["text"]
    stopped = run("generate", target, "-p", "x", "-n", "5", "--json", "--logit-bias", "40=1000", "--stop", text[0] * 2)
    assert json.loads(stopped.stdout) | {"stats": 0, "seed": 0, "engine": 0} == {
        "done": True,
        "engine": 0,
        "text": "",
        "token_ids": [40, 40],
        "finish_reason": "stop",
        "seed": 0,
        "stats": 0,
    }


def test_a_flag_goes_before_its_environment_variable(run: Run, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", target, "-p", "x", "--ignore-eos", "--json")
    monkeypatch.setenv("FORERUN_MAX_NEW_TOKENS", "3")
    assert len(json.loads(run(*arguments).stdout)["token_ids"]) == 3
    assert len(json.loads(run(*arguments, "--max-tokens", "4").stdout)["token_ids"]) == 4


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--temperature", "-1"), 2, "forerun: error: --temperature -1.0 must be"),
        (("--logit-bias", "a=b"), 2, "ID=VALUE"),
        (("--drafter", "draft_model"), 2, "--draft"),
        (("--drafter", "none", "--depth", "3"), 2, "--depth has no effect"),
        (("--drafter", "layer_skip", "--skip-sets", "no/sets.json"), 2, "no/sets.json cannot be read"),
        (("--json", "--show-tree"), 2, "cannot be used together"),
        (("--max-new-tokens", "600"), 2, "ask for at most 511 new tokens; the model has no more positions than that"),
        (("--max-length", "20", "-n", "20"), 2, "or raise --max-length (the model itself has 512 positions)"),
        (("-n", "-5"), 2, "--max-new-tokens -5 must be >= 1, or -1 for as many as fit"),
        (("--drafter", "parallel", "--drafter-address", "nowhere"), 2, "address 'nowhere' is not host:port"),
        (("--profile", "p.json"), 2, "there is no flag --profile: the times of passes are measured"),
        (("--draft-min", "3"), 2, "there is no flag --draft-min: how much is drafted"),
        (("--prompt", ""), 2, "the prompt is empty"),
        (("--model", "x"), 2, "the model is named twice"),
        (("--file", "no/such/file"), 2, "--prompt and --file are two prompts"),
        (("--max-new-tokenz", "3"), 2, "--max-new-tokens"),
        (("--dtype", "int3"), 2, "bfloat16"),
        (("--draft", "no/where/at/all"), 5, "no/where/at/all"),
    ],
)
def test_a_wrong_flag_is_told_in_one_message(
    run: Run, target: str, flags: tuple[str, ...], code: int, message: str
) -> None:
    shown = run("generate", target, "-p", "x", *flags)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert message in shown.stderr
    told = [line for line in shown.stderr.splitlines() if "; context " not in line]  # what runs, where it came so far
    assert len(told) == 1


@pytest.mark.parametrize(
    ("flags", "num_lines"), [((), 2), (("--quiet",), 0), (("--log-level", "error"), 0), (("-v",), 4)]
)
def test_how_much_is_said_beside_the_text_can_be_chosen(
    run: Run, target: str, flags: tuple[str, ...], num_lines: int
) -> None:
    shown = run("generate", target, "--threads", "1", *flags, *SAMPLED)
    assert len(shown.stderr.splitlines()) == num_lines
    if num_lines:
        assert f"{target}: 84.3 K parameters in float32 on cpu, 1 thread, " in shown.stderr
        assert "; drafter auto; context 512 tokens" in shown.stderr


def test_the_names_that_other_programs_have_for_flags_mean_the_same(run: Run, target: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"Once upon\n")
    ours = run("generate", target, "--json", *SAMPLED, "--repetition-penalty", "1.1")
    theirs = run(
        *("generate", "-m", target, "-f", str(file), "-n", "24", "--temp", "0.7", "-s", "1", "--ignore-eos", "--json"),
        *("--repeat-penalty", "1.1"),
    )
    assert json.loads(theirs.stdout)["token_ids"] == json.loads(ours.stdout)["token_ids"]


def test_ctrl_c_stops_with_the_text_so_far(target: str) -> None:
    arguments = command("generate", target, "-p", "x", "--ignore-eos", "--drafter", "none", "--logit-bias", "40=1000")
    process = subprocess.Popen(
        [*arguments, "-n", "500"], env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert process.returncode == 130
    assert 0 < len(first + rest.rstrip("\n")) < 500
    assert "tokens/s" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("command_line", [("generate", "--no-stream", "--prompt"), ("chat", "--quick")])
def test_the_model_s_own_sampling_is_the_default_of_a_command(
    run: Run, target: str, tmp_path: Path, command_line: tuple[str, ...]
) -> None:
    name, *flags = command_line
    folder = copytree(target, tmp_path / "model")
    recommended = {"do_sample": True, "temperature": 1.5, "repetition_penalty": 1.3}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    rest = (*flags, "The fox", "-n", "20", "--ignore-eos", "--seed", "3")
    shown = run(name, str(folder), *rest)
    assert shown.stdout == run(name, target, "--temperature", "1.5", "--repetition-penalty", "1.3", *rest).stdout
    assert "as set by the model: temperature 1.5, repetition_penalty 1.3; --temperature 0 is greedy" in shown.stderr
    greedy = run(name, str(folder), "--temperature", "0", *rest)
    assert greedy.stdout == run(name, target, *rest).stdout != shown.stdout
    assert "is greedy" not in greedy.stderr
