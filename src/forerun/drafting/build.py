"""Build a drafter from its config; the only list of all drafters."""

from collections.abc import Sequence
from typing import assert_never

from forerun.core.drafter_config import (
    Automatic,
    DrafterConfig,
    DraftHead,
    DraftModel,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    TokenRecycling,
)
from forerun.core.model_spec import ModelSpec
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.assistant import AssistantDrafter, AssistantExecutor
from forerun.drafting.heads.block import BlockExecutor
from forerun.drafting.heads.drafter import BlockDrafter, EagleDrafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.none import NoneDrafter
from forerun.drafting.policies import Policies
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.remote.connection import HelloCheck, WorkerSupply
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.runner import Runner
from forerun.model.shared_cache import SharedCacheRunner
from forerun.model.vocabulary_map import VocabularyMap


def build_drafter(
    config: DrafterConfig,
    policies: Policies,
    *,
    target: ModelSpec,
    draft_runner: Runner | None = None,
    vocabulary: VocabularyMap | None = None,
    supply: WorkerSupply | None = None,
    check: HelloCheck | None = None,
    shared: SharedCacheRunner | None = None,
    taps: Sequence[int] = (),
    known: Sequence[NamedSet] = (),
) -> Drafter:
    """A drafter for `target`.

    Args:
        draft_runner: the loaded draft model, if the config runs one in this process.
        vocabulary: maps that model's token ids to the target's; None: the ids are equal.
        supply: connections to the drafter process, if the config has one.
        check: checks that such a process is compatible.
        shared: the target, for self-drafting.
        taps: the target's layers whose outputs a head reads; `draft_runner` holds the head.
        known: skip sets found earlier for this target.
    """
    match config:
        case NoDrafter():
            return NoneDrafter()
        case PromptLookup():
            return PromptLookupDrafter(config, policies.lookup)
        case TokenRecycling():
            return TokenRecyclingDrafter(config, policies.tree, target_vocab_size=target.vocab_size)
        case DraftModel():
            assert draft_runner is not None, "a draft model needs its runner"
            return DraftModelDrafter(
                draft_runner, config, policies.tree, target_vocab_size=target.vocab_size, vocabulary=vocabulary
            )
        case DraftHead():
            return head_drafter(config, policies.tree, target.vocab_size, draft_runner, vocabulary, taps)
        case Parallel():
            assert supply is not None and check is not None, "a drafter in another process needs a connection"
            return ParallelDrafter(
                supply, config.draft, policies.remote, policies.tree, target_vocab_size=target.vocab_size, check=check
            )
        case LayerSkip():
            assert shared is not None, "a target that drafts for itself is needed"
            return LayerSkipDrafter(shared, config, known=known, policy=policies.skip, tree=policies.tree)
        case Automatic():
            raise AssertionError("it holds several drafters, each of which is built here")
        case _:
            assert_never(config)


def head_drafter(
    config: DraftHead, tree: TreePolicy, target_vocab_size: int, runner: Runner | None,
    vocabulary: VocabularyMap | None, taps: Sequence[int],
) -> Drafter:  # fmt: skip
    """The drafter of a head, by the kind of head that the runner holds."""
    assert runner is not None, "a head needs its runner"
    if isinstance(runner.executor, AssistantExecutor):
        return AssistantDrafter(runner, config, tree, target_vocab_size=target_vocab_size, taps=taps)
    kind = BlockDrafter if isinstance(runner.executor, BlockExecutor) else EagleDrafter
    return kind(runner, config, tree, target_vocab_size=target_vocab_size, taps=taps, vocabulary=vocabulary)
