"""What a user asks for, made into a run: real drafters on the built-in pair, records on disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from forerun import ConfigError, DraftModel, EngineConfig, Parallel, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.cli.drafter_options import DrafterOptions
from forerun.core.drafter_config import DrafterConfig
from forerun_lab.bench.records.answers import Match
from forerun_lab.bench.records.run_folder import read_run
from forerun_lab.bench.run import candidates, session
from forerun_lab.bench.run import interleaved as run
from forerun_lab.bench.run.ceilings import measure_ceilings
from forerun_lab.bench.run.entrants import GRIDS, Entrant
from forerun_lab.bench.run.session import NUM_TUNING_PROMPTS, RunRequest, play
from tests.bench.players import keys_in, records_in

Ask = Callable[..., RunRequest]
CONFIG = EngineConfig(max_length=256, num_threads=1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "measure_ceilings", partial(measure_ceilings, budget_s=0.01, cache_bytes=1 << 20))
    monkeypatch.setattr(session, "foreign_load", lambda: 0.0)
    monkeypatch.setattr(run, "PAUSE_S", 0.0)
    monkeypatch.setattr(candidates, "PAUSE_S", 0.0)
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    values: dict[str, Any] = {
        "draft": None,
        "peers": (),
        "data": ("builtin",),
        "num_prompts": 2,
        "temperatures": (0.0,),
        "repeats": 1,
        "tune": False,
        "out": tmp_path / "run",
        "cache": tmp_path / "cache",
    }

    def make(
        *,
        config: EngineConfig = CONFIG,
        drafters: tuple[str, ...] = ("draft_model", "prompt_lookup"),
        max_new_tokens: int = 8,
        seed: int = 0,
        **changes: Any,
    ) -> RunRequest:
        entrants = tuple(entrant(name, config) for name in ("none", *drafters))
        sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed)
        return RunRequest(**values | {"entrants": entrants, "sampling": sampling} | changes)

    return make


def entrant(name: Any, config: EngineConfig) -> Entrant:
    drafter = cast(Any, DrafterOptions)(drafter=name).config("builtin")
    return Entrant(label=name, name=name, config=replace(config, drafter=drafter))


def played(request: RunRequest) -> tuple[list[tuple[str, int]], list[int]]:
    """Data sets with the number of their questions that are too long, and the counts of answers told."""
    data: list[tuple[str, int]] = []
    counts: list[int] = []

    def on_progress(total: int) -> run.Progress:
        counts.append(total)
        return lambda done, who: counts.append(done)

    play(request, on_data=lambda dataset, num: data.append((dataset.name, num)), on_progress=on_progress)
    return data, counts


def test_every_drafter_answers_with_the_text_of_none(ask: Ask, tmp_path: Path) -> None:
    data, counts = played(ask(temperatures=(0.0, 1.0), repeats=2))
    assert data[0][0] == "builtin"
    assert (counts[0], counts[-1]) == (24, 24)
    records = records_in(tmp_path / "run")
    assert sorted(records) == [
        f"builtin/{name}-temperature-{temperature}.jsonl"
        for name in ("draft_model", "none", "prompt_lookup")
        for temperature in (0, 1)
    ]
    assert len(set(keys_in(tmp_path / "run"))) == 24
    for rows in records.values():
        for row in rows:
            assert [turn.match for turn in row.turns] == [Match(first_difference=None)]
            assert row.turns[0].rounds is not None
            assert row.turns[0].text


def resolved() -> str:
    """What "auto" is for the built-in target on this machine."""
    return session.Checkpoint.open(open_source("builtin"), EngineConfig()).dtype_name


def test_run_json_tells_the_circumstances(ask: Ask, tmp_path: Path) -> None:
    played(ask(drafters=(), command="forerun bench run"))
    about = read_run(tmp_path / "run" / "run.json")
    assert about["command"] == "forerun bench run"
    assert (about["dtype"], about["plan"]["dtype"]) == (resolved(), "auto")
    assert about["plan"]["num_threads"] == 1
    assert about["machine"]["foreign_load"] == 0.0
    assert about["floor"]["bytes_per_step"] > 1e6
    assert about["floor"]["bytes_per_s"] > 1e6
    assert set(about["contestants"]) == {"none"}, "none is always there"


def test_a_run_continues_and_other_flags_are_refused_by_name(ask: Ask, tmp_path: Path) -> None:
    request = ask(drafters=("prompt_lookup",))
    played(request)
    file = tmp_path / "run" / "builtin" / "prompt_lookup-temperature-0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2 + 100])  # one record and half of the next
    assert len(keys_in(tmp_path / "run")) == 3
    played(request)
    assert len(set(keys_in(tmp_path / "run"))) == len(keys_in(tmp_path / "run")) == 4
    assert file.read_bytes().startswith(whole[: whole.index(b"\n") + 1])
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*/*")}
    played(request)
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*/*")} == before
    for changes, name in (
        ({"seed": 1}, "seed"),
        ({"num_prompts": 3}, "questions"),
        ({"drafters": ("draft_model",)}, "drafters"),
        ({"tune": True}, "tune"),
        ({"config": replace(CONFIG, dtype="float64")}, "dtype"),
    ):
        with pytest.raises(ConfigError, match=f"holds a run with {name} "):
            played(ask(**{"drafters": ("prompt_lookup",), **changes}))


@pytest.mark.slow  # quicker: test_candidates, test_tuning
def test_settings_are_tuned_once_on_questions_that_are_not_measured(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRIDS, "prompt_lookup", ({}, {"verify_width": 4}))  # type: ignore[arg-type]
    asked: list[tuple[int, ...]] = []
    try_once = candidates.try_once

    def listen(trial: Any, contestant: Any, prompt_ids: Any, params: Any) -> None:
        asked.append(tuple(prompt_ids))
        try_once(trial, contestant, prompt_ids, params)

    monkeypatch.setattr(candidates, "try_once", listen)
    request = ask(drafters=("prompt_lookup",), tune=True)
    played(request)
    assert len(asked) == 2 * NUM_TUNING_PROMPTS
    assert len(set(asked)) == NUM_TUNING_PROMPTS
    tokenizer = open_source("builtin").tokenizer()
    measured = read_run(tmp_path / "run" / "run.json")["plan"]["questions"]["builtin"]
    rows = session.load_dataset("builtin", cache=tmp_path).questions
    texts = {row.turns[0] for row in rows if row.question_id in measured}
    assert len(texts) == 2
    assert texts.isdisjoint(map(tokenizer.decode, asked))
    (tmp_path / "run" / "builtin" / "prompt_lookup-temperature-0.jsonl").unlink()
    before = read_run(tmp_path / "run" / "run.json")["contestants"]
    played(request)
    assert len(asked) == 2 * NUM_TUNING_PROMPTS, "a run that goes on does not tune again"
    assert read_run(tmp_path / "run" / "run.json")["contestants"] == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peers": ("medusa",)}, "no contestant 'medusa'"),
        ({"peers": ("draft_model",)}, "draft_model is a drafter: name it with --drafters"),
        ({"data": ("a.jsonl", "a.jsonl")}, "--data a.jsonl,a.jsonl names one twice"),
        ({"temperatures": (0.0, 1.0, 1.0)}, "--temperature 0,1,1 names one twice"),
        ({"temperatures": (0.6, 0.60000001)}, "--temperature 0.6,0.6 names one twice"),
        ({"temperatures": (-1.0,)}, "temperature -1.0 must be 0"),
        ({"seed": -1}, "seed -1 must lie in"),
        ({"num_prompts": 0}, "at least one data set, prompt"),
        ({"repeats": 0}, "at least one"),
        ({"max_new_tokens": -1}, "at least one"),
        ({"data": ()}, "at least one"),
        ({"temperatures": ()}, "at least one"),
        ({"urls": {"vllm": "http://127.0.0.1:1"}}, "--url is given for 'vllm', which is not a peer here"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_is_written(
    ask: Ask, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(**changes)
    assert list(tmp_path.iterdir()) == []


def test_peers_get_the_dtype_threads_and_draft_of_the_drafters(ask: Ask) -> None:
    request = ask(config=EngineConfig(num_threads=1), peers=("vllm",), urls={"vllm": "http://127.0.0.1:1"})
    checkpoint = session.Checkpoint.open(open_source("builtin"), request.config)
    plan = session.peer_plan(request, checkpoint, 3, 99)
    assert (plan.dtype, plan.num_threads, plan.max_length, plan.device) == (resolved(), 3, 99, "cpu")
    assert plan.target == str(open_source("builtin").folder)
    assert plan.draft == str(open_source("builtin-draft").folder)
    assert plan.urls == {"vllm": "http://127.0.0.1:1"}
    quantised = session.Checkpoint.open(open_source("builtin"), EngineConfig(weights="int4"))
    assert session.peer_plan(request, quantised, 3, 99).weight_format == "int4"
    assert session.peer_plan(request, quantised, 3, 99).dtype in ("float32", "bfloat16")
    other = request.with_engines(lambda config: replace(config, target="builtin-draft"))
    named = replace(other, draft="builtin")
    assert session.peer_plan(named, checkpoint, 1, 99).draft == str(open_source("builtin").folder)
    assert session.peer_plan(other, checkpoint, 1, 99).draft is None


def test_a_parallel_draft_shares_the_targets_gpu_only_if_that_was_asked(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(drafter: DrafterConfig, **changes: Any) -> RunRequest:
        config = EngineConfig(device="cuda:0", drafter=drafter, **changes)
        return replace(ask(), entrants=(Entrant(label="mine", name="parallel", config=config),))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    message = "mine would draft on cuda:0, the target's own GPU, and there are 4: give --draft-device cuda:1, or"
    with pytest.raises(ConfigError, match=message):
        asked(Parallel())
    asked(Parallel(device="cuda:0"))
    asked(Parallel(), target_ranks=2)  # the draft is on the GPU after the target's last
    asked(DraftModel())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked(Parallel())
