"""forerun bench run as a user sees it: files, messages, exit codes."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun import ConfigError
from forerun_lab.bench.records.answers import Match
from forerun_lab.bench.records.run_folder import read_run
from forerun_lab.bench.run import interleaved as bench_run
from forerun_lab.bench.run import session
from forerun_lab.bench.run.ceilings import measure_ceilings
from forerun_lab.cli.bench_run import read_url
from tests.bench.players import keys_in, questions_file, records_in
from tests.cli.conftest import Run

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
