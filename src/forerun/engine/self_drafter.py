"""Self-drafting: the target's shared cache, an optional copy of its weights, and its skip sets."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from forerun.core.drafter_config import LayerSkip
from forerun.core.errors import require
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import NOTHING, absent_sublayers
from forerun.drafting.drafter import Drafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.layer_skip.set_files import NamedSet, first_set, read_found_sets, read_sets, sets_beside
from forerun.drafting.layer_skip.swift_strategy import paper_skip_ratio
from forerun.drafting.policies import Loading, Policies
from forerun.engine.model_loading import Checkpoint, LazyTarget
from forerun.model.quantise import weight_bytes
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner


class LoadingSelf(Loading, Protocol):
    """What a self-drafting target needs to be loaded."""

    checkpoint: Checkpoint  # the target's
    target: LazyTarget


def load(drafter: LayerSkip, loading: LoadingSelf) -> Drafter:
    """The drafter, with which the target is loaded."""
    whole = loading.target.load_rows(rows_behind_text(drafter, loading.policies.skip))
    return self_drafter(drafter, loading.policies, loading.checkpoint, whole)


def self_drafter(drafter: LayerSkip, policies: Policies, checkpoint: Checkpoint, target: Runner) -> Drafter:
    """The drafter, without measured pass times yet.

    Raises:
        CheckpointError, ConfigError: the configured file of sets cannot be read, or belongs to another model.
    """
    known = known_sets(drafter, checkpoint)
    if drafter.search == "paper" and drafter.skip_ratio is None:
        drafter = replace(drafter, skip_ratio=paper_skip_ratio(checkpoint.spec))
    has_copy = drafter.weights != "plain"
    shared = with_copy(checkpoint, target, drafter, known) if has_copy else SharedCacheRunner(target)
    return LayerSkipDrafter(shared, drafter, known=known, policy=policies.skip, tree=policies.tree)


def known_sets(drafter: LayerSkip, checkpoint: Checkpoint) -> list[NamedSet]:
    """The sets in the configured file, else in the file next to the model.

    Raises:
        ConfigError: layers cannot be left out of this model.
    """
    num_layers = checkpoint.spec.num_layers
    require(
        not checkpoint.spec.num_borrowing_layers,
        f"layer_skip cannot draft for a {checkpoint.spec.family} model in which layers read the keys of others, as a "
        "pass without these would not write them: choose another drafter",
    )
    if drafter.sets is not None:
        return read_sets(Path(drafter.sets), num_layers, checkpoint.source.identity())
    return read_found_sets(sets_beside(checkpoint.source.path), num_layers, checkpoint.source.identity())


def with_copy(checkpoint: Checkpoint, target: Runner, drafter: LayerSkip, known: list[NamedSet]) -> SharedCacheRunner:
    """The target's cache, with a rounded copy of its weights to run draft passes on.

    Without a search, skipped sublayers have no copy.

    Source: QuantSpec (arXiv 2502.10424) drafts with a 4-bit copy; ours skips sublayers of it as well.
    """
    spec = target.spec
    cache = target.cache
    unused = first_set(spec.num_layers, known, absent_sublayers(spec)) if drafter.search == "off" else NOTHING
    weights = checkpoint.source.weights(dtype=checkpoint.dtype, weight_format=drafter.weights, device=target.device)
    copy = target.backend.executor(spec, weights, cache, unused)
    return SharedCacheRunner(target, copy, byte_share(spec, drafter.weights, checkpoint))


def byte_share(spec: ModelSpec, weight_format: WeightFormat, checkpoint: Checkpoint) -> float:
    """Bytes of a weight in this format relative to the target's."""
    shape = (spec.intermediate_size, spec.hidden_size)
    size = checkpoint.dtype.itemsize
    own = checkpoint.weight_bytes(shape)
    return weight_bytes(shape, weight_format, size) / own
