"""Each rank's part of a checkpoint, and its weights; in a prepared folder every rank has its own file."""

from collections.abc import Sequence
from typing import Unpack

from forerun.checkpoints.prepared.folder import PreparedFolder
from forerun.checkpoints.prepared.rank_file import rank_shapes
from forerun.checkpoints.source import CheckpointSource, Reading
from forerun.checkpoints.typed_weights import HEAD, TABLE, own_format
from forerun.engine.model_loading import Checkpoint, Progress
from forerun.model.quantise import group_size_of, weight_bytes
from forerun.model.weights import Weight, WeightSource
from forerun.sharding.plan import ShardPlan, plan_shards
from forerun.sharding.weights import ShardedWeights


def shard_plans(checkpoint: Checkpoint, num_ranks: int) -> Sequence[ShardPlan]:
    """The plan of every rank.

    Raises:
        CheckpointError: the model was prepared for another number of ranks.
    """
    if isinstance(checkpoint.source, PreparedFolder):
        return checkpoint.source.plans(num_ranks)
    return plan_shards(checkpoint.spec, num_ranks, group_size=shared_group_size(checkpoint))


def shared_group_size(checkpoint: Checkpoint) -> int:
    """MLP features are divided in multiples of this number, so that groups of weights stay whole where possible."""
    num_features = checkpoint.spec.intermediate_size
    if checkpoint.has_codes:
        return 32 if num_features % 256 else 256
    return 1 if checkpoint.weight_format == "plain" else group_size_of(num_features)


def rank_weights(checkpoint: Checkpoint, plan: ShardPlan, on_progress: Progress | None = None) -> WeightSource:
    """A rank's part of the weights; only this part is read.

    Raises:
        CheckpointError: the files lack a weight.
    """
    if isinstance(checkpoint.source, PreparedFolder):
        return checkpoint.source.rank_weights(plan, **checkpoint.reading(on_progress))
    return ShardedWeights(checkpoint.weights(on_progress), checkpoint.spec, plan)


def output_weight(source: CheckpointSource, **reading: Unpack[Reading]) -> Weight:
    """The weight of the whole output, however many ranks the model was prepared for.

    Raises:
        CheckpointError: the files lack a part of it.
    """
    return source.output(**reading) if isinstance(source, PreparedFolder) else source.weights(**reading).linear(HEAD)[0]


def stored_bytes(checkpoint: Checkpoint, plan: ShardPlan) -> int:
    """Approximate bytes of a rank's part in a file."""
    total = 0
    weight_format = "int4" if checkpoint.has_codes else checkpoint.weight_format
    for name, shape in rank_shapes(checkpoint.spec, plan).items():
        module = name.removesuffix(".weight")
        is_matrix = len(shape) == 2 and name != TABLE
        own = own_format(module, weight_format)
        padded = (shape[0], shape[1]) if is_matrix else (1, shape[0] * (shape[1] if len(shape) == 2 else 1))
        total += weight_bytes(padded, own if is_matrix else "plain", checkpoint.dtype.itemsize)
    return total
