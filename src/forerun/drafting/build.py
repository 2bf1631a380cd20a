"""Config to drafter: the only place that lists them."""

from typing import assert_never

from forerun.core.config import DrafterConfig, DraftModel, NoDrafter, PromptLookup
from forerun.core.model_spec import ModelSpec
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.none import NoneDrafter
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.model.runner import Runner


def build_drafter(config: DrafterConfig, *, target: ModelSpec, draft_runner: Runner | None) -> Drafter:
    """A drafter for `target`. `draft_runner` is the loaded draft model where the config names one."""
    match config:
        case NoDrafter():
            return NoneDrafter()
        case PromptLookup():
            return PromptLookupDrafter(config)
        case DraftModel():
            assert draft_runner is not None, "a draft model needs its runner"
            return DraftModelDrafter(draft_runner, config, target_vocab_size=target.vocab_size)
        case _:
            assert_never(config)
