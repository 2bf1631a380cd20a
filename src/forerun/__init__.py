"""forerun: low-latency decoding of large language models, with exactly the text the model would have written.

The names below are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.core.config import EngineConfig, SamplingParams
    from forerun.core.drafter_config import (
        Automatic,
        DraftHead,
        DraftModel,
        LayerSkip,
        NoDrafter,
        Parallel,
        PromptLookup,
        TokenRecycling,
    )
    from forerun.core.errors import (
        CheckpointError,
        ConfigError,
        ContextOverflowError,
        DrafterUnreachableError,
        EngineBusyError,
        ForerunError,
        GrammarError,
        NumericalError,
        RankLostError,
        VocabularyError,
    )
    from forerun.core.grammar import Grammar
    from forerun.core.steps import DecodeStep, DrafterState, FinishReason, Generation, GenerationStats, StepStats
    from forerun.engine.engine import Engine, load
    from forerun.engine.stream import GenerationStream

__version__ = "0.1.0"

_HOMES = {
    "forerun.core.config": ("EngineConfig", "SamplingParams"),
    "forerun.core.drafter_config": (
        "Automatic",
        "DraftHead",
        "DraftModel",
        "LayerSkip",
        "NoDrafter",
        "Parallel",
        "PromptLookup",
        "TokenRecycling",
    ),
    "forerun.core.errors": (
        "CheckpointError",
        "ConfigError",
        "ContextOverflowError",
        "DrafterUnreachableError",
        "RankLostError",
        "EngineBusyError",
        "ForerunError",
        "GrammarError",
        "NumericalError",
        "VocabularyError",
    ),
    "forerun.core.grammar": ("Grammar",),
    "forerun.core.steps": ("DecodeStep", "DrafterState", "FinishReason", "Generation", "GenerationStats", "StepStats"),
    "forerun.engine.engine": ("Engine", "load"),
    "forerun.engine.stream": ("GenerationStream",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Automatic",
    "CheckpointError",
    "ConfigError",
    "ContextOverflowError",
    "DecodeStep",
    "DraftHead",
    "DraftModel",
    "DrafterState",
    "DrafterUnreachableError",
    "Engine",
    "EngineBusyError",
    "EngineConfig",
    "FinishReason",
    "ForerunError",
    "Generation",
    "GenerationStats",
    "GenerationStream",
    "Grammar",
    "GrammarError",
    "LayerSkip",
    "NoDrafter",
    "NumericalError",
    "Parallel",
    "PromptLookup",
    "RankLostError",
    "SamplingParams",
    "StepStats",
    "TokenRecycling",
    "VocabularyError",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'forerun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
