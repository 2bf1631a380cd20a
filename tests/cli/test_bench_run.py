"""forerun bench run as a user sees it: files, messages, exit codes."""

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import typer.main

from forerun import ConfigError
from forerun.cli.main import app
from forerun.core.drafter_config import (
    Automatic,
    DrafterConfig,
    DraftModel,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    TokenRecycling,
    paper_layer_skip,
    paper_parallel,
)
from forerun_lab.bench.records.answers import Match
from forerun_lab.bench.records.run_folder import read_run
from forerun_lab.bench.run import interleaved as bench_run
from forerun_lab.bench.run import session
from forerun_lab.bench.run.ceilings import measure_ceilings
from forerun_lab.bench.run.entrants import Entrant
from forerun_lab.cli.bench_run import read_url
from forerun_lab.cli.contestants import BenchEngineOptions, DraftingOptions, read_entrants
from tests.bench.players import keys_in, questions_file, records_in
from tests.cli.conftest import Run

NO_FLAGS = DraftingOptions()
NO_ENGINE_FLAGS = BenchEngineOptions()
QUICK = ("--threads", "1", "--max-length", "256", "--num-prompts", "2", "-n", "6")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(session, "measure_ceilings", partial(measure_ceilings, budget_s=0.01, cache_bytes=1 << 20))
    monkeypatch.setattr(bench_run, "PAUSE_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def test_a_run_writes_its_folder_says_where_it_is_and_continues(run: Run, tmp_path: Path) -> None:
    arguments = ("bench", "run", "--out", str(tmp_path / "run"), "--drafters", "draft_model,prompt_lookup", *QUICK)
    shown = run(*arguments)
    assert shown.exit_code == 0, shown.output
    assert "89 questions, part of forerun, those of the Python packages" in shown.stderr, "source and licence are told"
    assert f"show it with: forerun bench report {tmp_path / 'run'}" in shown.stderr
    assert "forerun: 0 of 6 answers" in shown.stderr
    assert "forerun: 6 of 6 answers" in shown.stderr
    assert shown.stdout == ""
    records = records_in(tmp_path / "run")
    assert sorted(records) == [
        f"builtin/{name}-temperature-0.jsonl" for name in ("draft_model", "none", "prompt_lookup")
    ]
    for rows in records.values():
        assert [row.turns[0].match for row in rows] == [Match(first_difference=None)] * 2
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*/*")}
    again = run(*arguments)
    assert again.exit_code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*/*")} == before
    report = run("bench", "report", str(tmp_path / "run"), "--json", str(tmp_path / "report.json"))
    assert report.exit_code == 0, report.output
    assert "draft_model" in report.stdout


def test_contestants_of_one_kind_have_settings_and_layouts_of_their_own(run: Run, tmp_path: Path) -> None:
    named = ("draft_model:verify_width=4,draft_model:verify-width=8,fixed_widths=1,label=wide", "none:target_ranks=2")
    shown = run(
        "bench", "run", "-o", str(tmp_path / "run"), *(part for text in named for part in ("--drafters", text)),
        "--depth", "3", "--top-p", "0.9", "--temp", "0.7", *QUICK,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    labels = ["none", "draft_model:verify_width=4", "wide", "none:target_ranks=2"]
    records = records_in(tmp_path / "run")
    assert sorted(records) == sorted(f"builtin/{label}-temperature-0.7.jsonl" for label in labels)
    for rows in records.values():
        assert [row.turns[0].match for row in rows] == [Match(first_difference=None)] * 2
    about = read_run(tmp_path / "run" / "run.json")
    assert about["plan"]["top_p"] == 0.9
    assert [entry["drafter"] for entry in about["contestants"].values()] == [
        "none",
        "draft_model",
        "draft_model",
        "none",
    ]
    drafter = about["plan"]["drafters"]["wide"]["drafter"]
    assert (drafter["verify_width"], drafter["depth"], drafter["adaptive"]) == (8, 3, False)
    assert about["plan"]["drafters"]["none:target_ranks=2"]["target_ranks"] == 2
    assert "wide" in run("bench", "report", str(tmp_path / "run")).stdout


DRAFT = DraftModel(verify_width=8)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["none,recycling"], {"none": NoDrafter(), "recycling": TokenRecycling()}),
        (["ngram"], {"ngram": PromptLookup()}),
        (["parallel:verify_width=8"], {"parallel:verify_width=8": Parallel(draft=DRAFT)}),
        (
            ["parallel:draft-ranks=2,draft_device=cuda:6,label=6+2", "draft_model : verify_width=8 , recycling"],
            {
                "6+2": Parallel(ranks=2, device="cuda:6"),
                "draft_model:verify_width=8": DRAFT,
                "recycling": TokenRecycling(),
            },
        ),
        (["layer_skip:search=off"], {"layer_skip:search=off": LayerSkip(search="off")}),
        (["layer_skip:draft_weights=int8,adaptive=0"], {
            "layer_skip:draft_weights=int8,adaptive=0": LayerSkip(weights="int8", adaptive=False),
        }),
        (["layer_skip_paper:verify_width=64,label=w"], {"w": replace(paper_layer_skip(), verify_width=64)}),
        (["parallel_paper"], {"parallel_paper": paper_parallel()}),
        (["parallel:without=lookup,without=noise,label=p"], {"p": Parallel(without=("lookup", "noise"))}),
        (["parallel:drafter_address=host:7070"], {"parallel:drafter_address=host:7070": Parallel(address="host:7070")}),
    ],
)  # fmt: skip
def test_settings_behind_a_name_are_those_of_generate(texts: list[str], expected: dict[str, DrafterConfig]) -> None:
    found = {entrant.label: entrant.config.drafter for entrant in entrants_of(texts)}
    assert found == {"none": NoDrafter()} | expected


def entrants_of(texts: list[str], *, drafting: Any = NO_FLAGS, machine: Any = NO_ENGINE_FLAGS) -> tuple[Entrant, ...]:
    return read_entrants(texts, "builtin", drafting, machine)


def test_flags_hold_for_all_drafters_that_use_them_and_a_drafters_own_settings_come_first() -> None:
    drafting: Any = cast(Any, DraftingOptions)(verify_width=4, depth=3, adaptive=False)
    machine: Any = cast(Any, BenchEngineOptions)(target_ranks=2, kernels="torch")
    named = ["recycling,draft_model:depth=5,auto,parallel:target_ranks=3"]
    none, recycling, draft, auto, parallel = entrants_of(named, drafting=drafting, machine=machine)
    assert recycling.config.drafter == TokenRecycling(verify_width=4, adaptive=False)
    assert draft.config.drafter == DraftModel(verify_width=4, depth=5, adaptive=False)
    assert auto.config.drafter == Automatic(), "it chooses widths itself"
    assert [entrant.config.target_ranks for entrant in (none, recycling, parallel)] == [2, 2, 3]
    assert {entrant.config.kernels for entrant in (none, recycling, parallel)} == {"torch"}
    assert [entrant.is_shaped for entrant in (none, recycling, draft, auto)] == [False, True, True, False]


def test_each_setting_of_generate_can_be_measured() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    panels = ("Model and machine", "Speculation", "Sampling")
    wanted = names_of(param for param in commands["generate"].params if param.rich_help_panel in panels)
    missing = wanted - names_of(commands["bench"].commands["run"].params)
    assert missing == {"--speculative-config"}, "vLLM's form of a drafter; --drafters names it"


def names_of(params: Iterable[Any]) -> set[str]:
    return {name for param in params for name in (*param.opts, *param.secondary_opts)}


def test_a_file_of_ones_own_is_read_and_flags_reach_the_run(run: Run, tmp_path: Path) -> None:
    own = questions_file(tmp_path / "mine.jsonl", [["def f(x):", "def g(x):"], ["x = 1\n" * 300], ["a = "]])
    shown = run(
        "bench", "run", "-o", str(tmp_path / "run"), "--drafters", "prompt_lookup", "--data", f"builtin,{own}",
        "--temperature", "0", "--temp", "0.7", "--repeats", "2", "--seed", "5", "--ignore-eos", *QUICK,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "mine: 3 questions" in shown.stderr
    assert "1 too long for the context are left out" in shown.stderr
    about = read_run(tmp_path / "run" / "run.json")
    plan = about["plan"]
    assert plan["questions"]["mine"] == [0, 2]
    assert (plan["temperatures"], plan["repeats"], plan["seed"], plan["ignore_eos"]) == ([0.0, 0.7], 2, 5, True)
    assert (plan["num_threads"], plan["max_length"], plan["max_new_tokens"]) == (1, 256, 6)
    assert len(set(keys_in(tmp_path / "run"))) == (2 + 2) * 2 * 2 * 2
    records = records_in(tmp_path / "run")
    assert [len(record.turns) for record in records["mine/none-temperature-0.7.jsonl"]] == [2, 1, 2, 1]
    assert {record.seed for record in records["mine/none-temperature-0.7.jsonl"]} == {5, 6}


def test_a_contestant_that_cannot_take_part_is_named_and_the_run_succeeds(run: Run, tmp_path: Path) -> None:
    shown = run(
        "bench", "run", "-o", str(tmp_path / "run"), "--drafters", "parallel", "--peers", "llama_server", *QUICK
    )
    assert shown.exit_code == 0, shown.output
    about = read_run(tmp_path / "run" / "run.json")["contestants"]
    assert "the drafter would take the only thread" in about["parallel"]["skipped"]
    assert "reads only GGUF files" in about["llama_server"]["skipped"]
    assert about["none"]["skipped"] is None
    for name in ("parallel", "llama_server"):
        assert f"forerun: left out: {name}: {about[name]['skipped']}\n" in shown.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--drafters", "medusa"), "no contestant 'medusa': drafters are none, auto, draft_model, recycling, "),
        (("--peers", "medusa"), "no contestant 'medusa'"),
        (("--drafters", "none,none"), "--drafters none,none names one twice: name each once"),
        (("--drafters", "recycling", "--drafters", "recycling"), "names one twice"),
        (("--drafters", "verify_width=8"), "begins with a setting: name its drafter, as in parallel:verify_width=8"),
        (("--drafters", "recycling:depth=3"), "recycling:depth=3: --depth has no effect on the drafter recycling"),
        (("--drafters", "recycling:verify_width=x"), "--verify-width 'x' must be a whole number"),
        (("--drafters", "recycling:verify_width=0"), "verify_width=0: --verify-width 0 must be >= 1"),
        (("--drafters", "recycling:speed=1"), "there is no setting 'speed': give label=TEXT, or a flag of forerun "),
        (("--drafters", "none,:verify_width=8"), "':verify_width=8' lacks the drafter's name, as in parallel:ver"),
        (("--drafters", "recycling:fixed_widths"), "the setting 'fixed_widths' has no value: write fixed_widths=VALUE"),
        (("--drafters", "draft_model:fixed_widths="), "the setting 'fixed_widths' has no value"),
        (("--drafters", f"recycling:label={'x' * 240}"), "too long for the name of a file: give the drafter a label"),
        (("--drafters", "recycling:label=vllm", "--peers", "vllm"), "the label vllm is the name of a peer here"),
        (("--drafters", "parallel_paper:without=noise"), "--without has no effect on parallel_paper, which drafts as"),
        (("--drafters", "parallel:without=nope"), "without=nope: without 'nope' must be one of send_ahead, look"),
        (
            ("--drafters", "recycling,layer_skip,parallel", "--draft-weights", "int8"),
            "error: parallel: --draft-weights",
        ),
        (("--drafters", "parallel_paper", "--without", "noise"), "--without has no effect on the drafters parallel_pa"),
        (("--drafters", "recycling:max_length=9"), "--max-length is the same for all contestants: give it as a flag"),
        (("--drafters", "draft_model:depth=1,depth=2"), "depth is given twice: leave out one"),
        (("--drafters", "recycling:label=none"), "the label none is that of plain decoding"),
        (("--drafters", "recycling:target_ranks=0"), "recycling:target_ranks=0: --target-ranks 0 must lie in [1, 64]"),
        (("--drafters", "recycling", "--no-bayes"), "--no-bayes has no effect on the drafters recycling: leave it out"),
        (("--drafters", "none,recycling", "--depth", "3"), "--depth has no effect on the drafters none, recycling"),
        (("--drafters", "parallel_paper:draft=self"), "uses a draft model: name one with --draft, not self"),
        (("--top-p", "2"), "--top-p 2.0 must lie in (0, 1]"),
        (("--drafters", "transformers"), "transformers is a peer: name it with --peers"),
        (("--peers", "none"), "none is a drafter: name it with --drafters"),
        (("--data", "mt_bank"), "there is no data set 'mt_bank': choose from builtin, mt_bench"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl does not exist: give a file of one JSON object per line"),
        (("--url", "vllm"), "--url 'vllm' must have the form PEER=URL, such as vllm=http://127.0.0.1:8000"),
        (("--serve", "vllm='vllm"), "must have the form PEER=COMMAND"),
        (("--serve", "vllm"), "--serve 'vllm' must have the form PEER=COMMAND, such as 'vllm=vllm serve'"),
        (("--serve", "vllm=vllm serve"), "--serve is given for 'vllm', which is not a peer here: add it to --peers"),
        (("--peers", "llama_cpp"), "llama_cpp is measured through its server now: name llama_server, with"),
        (("--url", "vllm=http://h:1"), "--url is given for 'vllm', which is not a peer here: add it to --peers"),
        (("--temperature", "-1"), "temperature -1.0 must be 0 (greedy)"),
        (("--num-prompts", "0"), "at least one data set, prompt, temperature, repeat and new token"),
        (("-n", "300"), "lower --max-new-tokens, or raise --max-length"),
        (("--device", "paced:nonsense"), "write it like"),
    ],
)
def test_a_wrong_flag_is_told_and_leaves_nothing_behind(
    run: Run, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    shown = run("bench", "run", "-o", str(tmp_path / "run"), *QUICK, *flags)
    assert (shown.exit_code, shown.stdout) == (2, ""), shown.output
    assert shown.stderr.splitlines()[-1].startswith("forerun: error: ")
    assert message in shown.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_used_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    foreign = run("bench", "run", "-o", str(tmp_path), *QUICK)
    assert foreign.exit_code == 2
    assert "is not empty and holds no run.json: give a new folder to --out" in foreign.stderr
    file = run("bench", "run", "-o", str(tmp_path / "thesis.tex"), *QUICK)
    assert file.exit_code == 2
    assert "give another folder to --out" in file.stderr
    assert run("bench", "run", "-o", str(tmp_path / "run"), "--drafters", "none", *QUICK).exit_code == 0
    other = run("bench", "run", "-o", str(tmp_path / "run"), "--drafters", "none", *QUICK, "--repeats", "2")
    assert other.exit_code == 2
    assert "holds a run with repeats 1, this one has 2: give another folder to --out, or the same flags" in other.stderr
    assert run("bench", "run").exit_code == 2, "--out is needed"


@pytest.mark.parametrize(
    "text", ["vllm", "vllm=", "vllm=host:8000", "vllm=ftp://host", "vllm=http://", "vllm=http://host:port", "=x", ""]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must have the form PEER=URL"):
        read_url(text)


def test_the_command_is_written_down_so_that_it_can_be_typed_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = questions_file(tmp_path / "my file.jsonl", [["a = "]])
    arguments = ["bench", "run", "-o", str(tmp_path / "run"), "--data", own, "--drafters", "none", *QUICK]
    monkeypatch.setattr(sys, "argv", ["forerun", *arguments])
    assert run(*arguments).exit_code == 0
    command = read_run(tmp_path / "run" / "run.json")["command"]
    assert command.startswith("forerun bench run -o ")
    assert shlex.split(command)[1:] == arguments
