"""The drafters of this engine as contestants."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest
import torch

from forerun import (
    ConfigError,
    DraftModel,
    EngineConfig,
    NoDrafter,
    Parallel,
    SamplingParams,
)
from forerun.cli.drafter_options import DrafterOptions
from forerun.core.drafter_config import (
    DRAFTERS,
    DrafterConfig,
    DrafterName,
    NamedConfig,
)
from forerun.core.steps import StepStats
from forerun_lab.bench.run import drafters
from forerun_lab.bench.run.drafters import DrafterContestant, columns_of, target_share
from forerun_lab.bench.run.entrants import GRIDS, NONE, with_settings

PROMPT = "def is_even(number):\n    return number % 2 == 0\n\ndef is_odd(number):\n    return number %"
GREEDY = SamplingParams(max_new_tokens=10, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=3)
CONFIG = EngineConfig(drafter=NoDrafter(), max_length=256, num_threads=1)


def default_of(name: Any) -> DrafterConfig:
    """The drafter of a contestant without settings of its own."""
    return DrafterOptions(drafter=name).config("builtin")


@pytest.fixture(scope="module")
def none() -> Iterator[DrafterContestant]:
    contestant = DrafterContestant(NONE, CONFIG)
    yield contestant
    contestant.close()


@pytest.fixture(scope="module", params=["draft_model", "prompt_lookup", "layer_skip", "layer_skip_paper"])
def contestant(request: pytest.FixtureRequest) -> Iterator[DrafterContestant]:
    drafter = with_settings(default_of(request.param), {"verify_width": 6, "adaptive": False})
    contestant = DrafterContestant(request.param, replace(CONFIG, drafter=drafter))
    yield contestant
    contestant.close()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_an_answer_is_that_of_none_and_its_columns_fit_together(
    none: DrafterContestant, contestant: DrafterContestant, params: SamplingParams
) -> None:
    prompt_ids = none.engine.encode(PROMPT)
    plain = none.write(prompt_ids, params)
    turn = contestant.write(prompt_ids, params)
    assert (turn.token_ids, turn.text) == (plain.token_ids, plain.text)
    assert turn.text
    for answer in (plain, turn):
        assert answer.num_prompt_tokens == len(prompt_ids)
        assert answer.num_new_tokens == len(answer.token_ids) == 10
        assert answer.rounds is not None
        columns = asdict(answer.rounds)
        assert {len(column) for column in columns.values()} == {len(answer.emitted)} == {len(answer.emitted_at_s)}
        assert answer.emitted == tuple(num + 1 for num in answer.rounds.num_accepted)
        assert sum(answer.emitted[:-1]) < 10 <= sum(answer.emitted)
        assert columns["num_verified"] == tuple(num + 1 for num in columns["num_drafted"])
        times = [0.0, *answer.emitted_at_s]
        assert times == sorted(times)
        assert answer.wall_s == times[-1]
        work_s = sum(answer.rounds.draft_s) + sum(answer.rounds.verify_s)
        assert work_s < answer.wall_s, "the wall time has the prefill too"
    assert plain.emitted == (1,) * 10
    assert turn.rounds is not None
    doubts = contestant.name == "layer_skip_paper"  # it ends a draft at the first token that it is not sure of
    assert max(turn.rounds.num_verified) == 6 or doubts
    assert params is SAMPLED or sum(turn.rounds.num_accepted) > 0


def test_the_end_of_a_text_cuts_ids_but_not_rounds(contestant: DrafterContestant) -> None:
    """The last round may have emitted more than the answer has."""
    prompt_ids = contestant.engine.encode(PROMPT)
    for num_tokens in range(1, 8):
        turn = contestant.write(prompt_ids, SamplingParams(max_new_tokens=num_tokens, ignore_eos=True))
        assert len(turn.token_ids) == num_tokens <= sum(turn.emitted)


@pytest.mark.parametrize(("name", "settings"), [(name, settings) for name in GRIDS for settings in GRIDS[name]])
def test_every_setting_of_a_grid_is_one_of_its_drafter(name: str, settings: dict[str, object]) -> None:
    default = default_of(name)
    config = with_settings(default, settings)
    assert (config == default) == (not settings), "a setting that is the default would be tried twice"
    assert type(config) is type(default)


def test_every_config_of_a_drafter_has_one_name() -> None:
    assert sorted(id(kind.config) for kind in DRAFTERS.values()) == sorted(map(id, get_args(NamedConfig)))
    assert DRAFTERS.keys() == set(get_args(DrafterName))


@pytest.mark.parametrize(
    ("drafter", "device", "num_threads", "expected"),
    [
        (NoDrafter(), "cpu", 4, 4),
        (DraftModel(), "cpu", 1, 1),
        (Parallel(), "cpu", 4, 3),
        (Parallel(ranks=2), "cpu", 4, 2),
        (Parallel(num_threads=2), "cpu", 4, 2),
        (Parallel(address="host:1"), "cpu", 1, 1),
        (Parallel(), "paced:target=10ms", 1, 1),
        (Parallel(), "cuda:0", 1, 1),
    ],
)
def test_a_drafter_beside_the_target_takes_its_threads_out_of_the_same_number(
    drafter: DrafterConfig, device: str, num_threads: int, expected: int
) -> None:
    assert target_share(EngineConfig(device=device, num_threads=num_threads, drafter=drafter)) == expected


def test_the_ranks_of_a_target_share_its_threads() -> None:
    shares = [target_share(EngineConfig(target_ranks=2, num_threads=number, drafter=NoDrafter())) for number in (4, 1)]
    assert shares == [2, 1]
    assert target_share(EngineConfig(target_ranks=2, num_threads=5, drafter=Parallel())) == 2


def test_where_threads_compute_nobody_gets_more_of_them_than_others() -> None:
    with pytest.raises(
        ConfigError, match=r"would take the only thread, and the target needs one too: give --threads 2 or more"
    ):
        DrafterContestant("parallel", replace(CONFIG, drafter=Parallel()))


def test_who_finds_no_memory_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(config: EngineConfig) -> None:
        raise torch.OutOfMemoryError("tried to allocate 15 GiB")

    monkeypatch.setattr(drafters, "Engine", full)
    with pytest.raises(ConfigError, match=r"no memory for draft_model, .*15 GiB.*: measure fewer at a time"):
        DrafterContestant("draft_model", replace(CONFIG, drafter=DraftModel()))


def test_records_timelines_and_lines_of_json_have_the_same_numbers_of_a_round() -> None:
    stats = StepStats(
        num_drafted=3, num_verified=4, num_accepted=2, num_near_ties=1, draft_s=0.5, verify_s=0.25, wait_s=0.125,
        was_hit=True,
    )  # fmt: skip
    assert stats.numbers() == {
        "num_drafted": 3, "num_verified": 4, "num_accepted": 2, "draft_s": 0.5, "verify_s": 0.25, "wait_s": 0.125,
        "was_hit": True,
    }  # fmt: skip
    assert asdict(columns_of([stats])) == {name: (value,) for name, value in stats.numbers().items()}
