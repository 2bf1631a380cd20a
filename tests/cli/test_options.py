"""Flags become the configuration they stand for."""

import pytest

from forerun.cli.options import DrafterName, DType, EngineOptions, ExactnessName, SamplingOptions
from forerun.core.config import BUILTIN_TARGET, DraftModel, EngineConfig, NoDrafter, PromptLookup, SamplingParams
from forerun.core.errors import ConfigError


def test_no_flags_ask_for_the_defaults() -> None:
    assert EngineOptions().config(BUILTIN_TARGET) == EngineConfig(drafter=DraftModel())
    assert SamplingOptions().params() == SamplingParams()


@pytest.mark.parametrize(
    ("options", "model", "drafter"),
    [
        (EngineOptions(), "m", PromptLookup()),
        (EngineOptions(draft="d"), "m", DraftModel(model="d")),
        (EngineOptions(drafter=DrafterName.NONE), BUILTIN_TARGET, NoDrafter()),
        (EngineOptions(drafter=DrafterName.NGRAM, verify_width=4), "m", PromptLookup(verify_width=4)),
        (EngineOptions(drafter=DrafterName.DRAFT_MODEL), BUILTIN_TARGET, DraftModel()),
        (EngineOptions(draft="d", depth=2, children=3), "m", DraftModel(model="d", depth=2, children=3)),
    ],
)
def test_who_drafts(options: EngineOptions, model: str, drafter: object) -> None:
    assert options.config(model).drafter == drafter


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (EngineOptions(drafter=DrafterName.NONE, draft="d"), "--draft"),
        (EngineOptions(drafter=DrafterName.NONE, verify_width=4), "--verify-width"),
        (EngineOptions(draft_width=4), "--draft-width"),
    ],
)
def test_a_flag_of_another_drafter_is_refused(options: EngineOptions, flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        options.config("m")


def test_the_choices_are_those_of_the_configuration() -> None:
    for dtype in DType:
        assert EngineOptions(dtype=dtype).config("m").dtype == dtype
    for exactness in ExactnessName:
        assert EngineOptions(exactness=exactness).config("m").exactness == exactness
