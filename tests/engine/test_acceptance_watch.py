"""A draft that was made for another target shows as low acceptance, of which the user is told once."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from forerun import Automatic, DraftHead, DraftModel, Engine, EngineConfig, NoDrafter, PromptLookup, SamplingParams
from forerun.core.drafter_config import DrafterConfig
from forerun.core.steps import PREDICTION, StepStats
from forerun.decoding.drafters import Drafters
from forerun.engine.acceptance_watch import LEAST_ROUNDS, NUM_TOKENS, AcceptanceWatch
from tests.drafting.heads.published import builtin_head

PROMPT = "def area(radius):\n    return"
LONG = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=1.0, seed=1, ignore_eos=True)


def warnings_of(
    drafter: DrafterConfig, params: Sequence[SamplingParams], caplog: pytest.LogCaptureFixture
) -> list[str]:
    config = EngineConfig(drafter=drafter, num_threads=1, max_length=512)
    with caplog.at_level(logging.WARNING, "forerun.engine.acceptance_watch"), Engine(config) as engine:
        for asked in params:
            engine.generate(PROMPT, asked)
    return [record.getMessage() for record in caplog.records if record.name == "forerun.engine.acceptance_watch"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("eagle3", "an EAGLE-3 head"), pytest.param("dflash2", "a DFlash head", marks=pytest.mark.slow)],
)
def test_a_head_that_fits_no_better_than_chance_is_warned_of_once(
    kind: Literal["eagle3", "dflash2"], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = builtin_head(kind)
    (warning,) = warnings_of(DraftHead(model=head, adaptive=False), [LONG, replace(LONG, seed=2)], caplog)
    assert f"with {name} 70 to 95 % is usual" in warning
    assert warning.endswith(f"forerun check builtin {head}")


@pytest.mark.parametrize(
    ("drafter", "params"),
    [
        (DraftModel(model="builtin-draft", adaptive=False), LONG),  # it fits
        (DraftHead(model=builtin_head("eagle3"), adaptive=False), replace(LONG, max_new_tokens=NUM_TOKENS - 1)),
        (PromptLookup(adaptive=False), LONG),  # it depends on the text alone
        # It rests, as it does not pay here.
        pytest.param(DraftHead(model=builtin_head("eagle3")), LONG, marks=pytest.mark.slow),
        pytest.param(NoDrafter(), LONG, marks=pytest.mark.slow),
    ],
)
def test_there_is_no_warning_where_it_would_say_nothing(
    drafter: DrafterConfig, params: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(drafter, [params, params], caplog) == []


def round_of(num_drafted: int, num_accepted: int, drafted_by: str = "") -> StepStats:
    return StepStats(
        num_drafted=num_drafted, num_verified=num_drafted + 1, num_accepted=num_accepted, num_near_ties=0,
        draft_s=0.0, verify_s=0.0, was_hit=False, drafted_by=drafted_by,
    )  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> tuple[EngineConfig, Drafters]:
    """A config, and what drafts by it."""
    config = EngineConfig(drafter=Automatic(draft=DraftModel(model="builtin-draft")), num_threads=1, max_length=128)
    with Engine(config) as engine:
        return config, engine.drafting


@pytest.mark.parametrize(
    ("rounds", "is_told"),
    [
        ([round_of(7, 0)] * NUM_TOKENS, True),
        ([round_of(7, 0)] * LEAST_ROUNDS + [round_of(0, 0)] * NUM_TOKENS, True),
        ([round_of(7, 0)] * (LEAST_ROUNDS - 1) + [round_of(0, 0)] * NUM_TOKENS, False),
        ([round_of(7, 0), round_of(7, 2)] * NUM_TOKENS, False),  # half of the rounds
        ([round_of(7, 0, "draft_model")] * NUM_TOKENS, True),
        ([round_of(7, 0, "recycling")] * NUM_TOKENS, False),  # another drafter's guesses
        ([round_of(7, 0, PREDICTION)] * NUM_TOKENS, False),  # the user's
        ([round_of(7, 1)] * NUM_TOKENS + [round_of(7, 0)] * NUM_TOKENS, False),  # the first tokens count
    ],
)
def test_rounds_with_a_proposal_of_the_draft_are_judged(
    rounds: list[StepStats],
    is_told: bool,
    judged: tuple[EngineConfig, Drafters],
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = AcceptanceWatch(*judged)
    for _ in range(2):
        watch.start_answer()
        for stats in rounds:
            watch.told(stats, stats.num_accepted + 1)
    assert len([record for record in caplog.records if "probably made for another" in record.message]) == is_told
