"""What a user may import from `forerun`. A name leaves or changes only with a line in the changelog."""

import inspect

import pytest

import forerun
from forerun.core import errors

EXPECTED = {
    "Engine",
    "EngineConfig",
    "SamplingParams",
    "Automatic",
    "LayerSkip",
    "NoDrafter",
    "DraftHead",
    "DraftModel",
    "Parallel",
    "PromptLookup",
    "TokenRecycling",
    "Grammar",
    "GrammarError",
    "Generation",
    "GenerationStats",
    "GenerationStream",
    "DecodeStep",
    "DrafterState",
    "StepStats",
    "FinishReason",
    "load",
    "ForerunError",
    "ConfigError",
    "CheckpointError",
    "VocabularyError",
    "ContextOverflowError",
    "EngineBusyError",
    "NumericalError",
    "DrafterUnreachableError",
    "RankLostError",
}


def test_the_public_names_are_the_promised_ones() -> None:
    assert set(forerun.__all__) - {"__version__"} == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_public_name_can_be_had_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(forerun, name)), f"forerun.{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = forerun.no_such_name


def test_every_error_is_public_and_a_forerun_error() -> None:
    found = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert found <= set(forerun.__all__)
    assert all(issubclass(getattr(errors, name), errors.ForerunError) for name in found)
