"""Load a draft head for a target."""

from importlib import import_module

from forerun.core.drafter_config import DraftHead
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.loading import HeadLoading
from forerun.drafting.policies import TreePolicy
from forerun.engine.model_loading import Checkpoint
from forerun.engine.rank_weights import output_weight
from forerun.model.runner import Runner


def load_head(
    stored: StoredHead,
    drafter: DraftHead,
    policy: TreePolicy,
    target: Runner,
    checkpoint: Checkpoint,
    *,
    capacity: int,
    max_length: int,
    cache_bytes: int,
) -> Drafter:
    """The drafter of a head, see `load` of its kind's network.

    Args:
        checkpoint: the target's files.
        capacity: tokens of text and tree for which the head's cache needs room.
        max_length: tokens of a text.
        cache_bytes: limit on its saved texts.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    device = checkpoint.device
    given = HeadLoading(
        config=drafter,
        policy=policy,
        target=target,
        source=checkpoint.source,
        backend=checkpoint.choose_backend("fast").backend,
        dtype=checkpoint.dtype,
        device=device,
        pace=checkpoint.placement.draft,
        capacity=capacity,
        max_length=max_length,
        cache_bytes=cache_bytes,
        output_weight=lambda dtype: output_weight(checkpoint.source, dtype=dtype, device=device),
    )
    network = import_module(f"forerun.drafting.heads.{stored.kind.network}")
    built: Drafter = network.load(stored, given)
    return built
