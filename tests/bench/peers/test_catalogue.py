"""Which peers there are, why one cannot take part, and what may be set."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun import ConfigError
from forerun_lab.bench.peers import catalogue
from forerun_lab.bench.peers.catalogue import PEERS, find_absence, open_peer
from forerun_lab.bench.peers.messages import PeerPlan

PLAN = PeerPlan(target="target", dtype="float32", num_threads=1, max_length=64)
COMMANDS = dict.fromkeys(PEERS, sys.executable)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda package: object())


@pytest.mark.parametrize("name", PEERS)
def test_a_grid_begins_with_the_defaults_and_repeats_nothing(name: str) -> None:
    entries = PEERS[name].grid
    assert entries[0] == {}
    assert all(entry not in entries[:place] for place, entry in enumerate(entries))


@pytest.mark.parametrize("name", [name for name in PEERS if name.endswith(("assisted", "lookup", "draft"))])
def test_a_peer_that_guesses_is_tuned_over_six_settings(name: str) -> None:
    assert len(PEERS[name].grid) == 6


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("transformers_assisted", {}, "no draft model"),
        ("llama_server_draft", {}, "no draft model"),
        ("llama_server", {}, "it reads only GGUF files, and target is not one: give --target and --draft a GGUF file"),
        ("vllm", {"dtype": "float64"}, "servers do not compute in float64"),
        ("vllm", {"urls": {"sglang": "http://127.0.0.1:1"}}, "vllm is not a program here: name it with --serve vllm="),
        ("sglang", {"commands": {"sglang": "/nowhere/sglang serve"}}, "/nowhere/sglang is not a program"),
        ("sglang", {"commands": {"sglang": "A=1 sh"}}, "A=1 is not a program here"),
        ("sglang", {"commands": {"sglang": "env A=1 nowhere"}}, "nowhere is not a program here"),
        ("sglang", {"weight_format": "int8"}, "it loads no int8 weights here"),
        ("openai_server", {}, "no address and no command: give --url openai_server=URL, or --serve 'openai_server="),
        ("openai_server", {"commands": {"openai_server": "sh"}}, "COMMAND --port {port}'"),
        ("transformers", {"device": "paced:target=10ms"}, "paced device"),
        ("transformers", {"weight_format": "int8"}, "it loads no int8 weights here, only float32, bfloat16"),
        ("transformers_lookup", {"weight_format": "int4"}, "it loads no int4 weights here"),
    ],
)
def test_who_cannot_take_part_says_why(name: str, changes: dict[str, Any], reason: str) -> None:
    plan = replace(PLAN, **changes)
    assert reason in (find_absence(name, plan) or "")
    with pytest.raises(ConfigError, match=reason):
        open_peer(name, plan, {})


def test_a_gguf_file_is_for_servers_and_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    plan = replace(PLAN, target=str(tmp_path / "x.gguf"), draft="draft", commands=COMMANDS)
    assert find_absence("llama_server", plan) is find_absence("vllm", plan) is None
    assert "and draft is not one" in (find_absence("llama_server_draft", plan) or "")
    assert "does not compute with GGUF files" in (find_absence("transformers", plan) or "")
    assert "not rounded again to int8" in (find_absence("llama_server", replace(plan, weight_format="int8")) or "")


def test_who_has_all_it_needs_can_take_part() -> None:
    plan = replace(PLAN, draft="draft", urls={"vllm": "http://127.0.0.1:1"})
    absent = [name for name in PEERS if find_absence(name, plan) is not None]
    assert [name for name in PEERS if name not in absent] == [*(n for n in PEERS if "transformers" in n), "vllm"]
    assert find_absence("sglang", replace(plan, commands=COMMANDS)) is None


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_server_that_is_up_has_the_weights_it_has(weight_format: Any) -> None:
    plan = replace(PLAN, weight_format=weight_format, urls={"vllm": "http://127.0.0.1:1"})
    assert find_absence("vllm", plan) is None


def test_asking_who_is_there_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'llama_cpp', 'gguf', 'numpy'}"
    code = (
        "import sys; from forerun_lab.bench.peers.catalogue import *\n"
        "plan = PeerPlan(target='t', dtype='float32', num_threads=1, max_length=9)\n"
        f"[find_absence(name, plan) for name in PEERS]; sys.exit(str({heavy} & set(sys.modules) or ''))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stderr.strip() == ""
