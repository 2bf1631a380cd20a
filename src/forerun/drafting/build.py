"""Config to drafter: the only place that lists them."""

from typing import assert_never

from forerun.core.config import DrafterConfig, DraftModel, NoDrafter, Parallel, PromptLookup
from forerun.core.model_spec import ModelSpec
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.none import NoneDrafter
from forerun.drafting.parallel.client import ParallelDrafter
from forerun.drafting.parallel.supply import HelloCheck, WorkerSupply
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.model.runner import Runner


def build_drafter(
    config: DrafterConfig,
    *,
    target: ModelSpec,
    draft_runner: Runner | None = None,
    supply: WorkerSupply | None = None,
    check: HelloCheck | None = None,
) -> Drafter:
    """A drafter for `target`.

    Args:
        draft_runner: the loaded draft model, where the config names one for this process.
        supply: connections to the process that drafts, where the config wants one.
        check: what such a process must be, to be of use.
    """
    match config:
        case NoDrafter():
            return NoneDrafter()
        case PromptLookup():
            return PromptLookupDrafter(config)
        case DraftModel():
            assert draft_runner is not None, "a draft model needs its runner"
            return DraftModelDrafter(draft_runner, config, target_vocab_size=target.vocab_size)
        case Parallel():
            assert supply is not None and check is not None, "a drafter elsewhere needs a way to it"
            return ParallelDrafter(supply, config, target_vocab_size=target.vocab_size, check=check)
        case _:
            assert_never(config)
