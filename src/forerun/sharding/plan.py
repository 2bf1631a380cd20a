"""Compute which part of a model each rank of a group holds.

Every divided dimension is first padded so that all parts are equal, with zeros that have no effect: a padded query head
has no columns in the next product, a padded intermediate feature is silu(0) * 0, and padded tokens are cut off before
sampling.

Source: Megatron-LM (arXiv 1909.08053), section 3: products in pairs, the first divided by outputs, the second by
inputs, with one sum over the ranks after each pair. SwiftSpec (arXiv 2506.11309) pads to any even degree; we pad to any
degree.
"""

from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Final

from forerun.core.drafter_config import MAX_RANKS
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec

FEATURES_ALIGNED: Final = 64  # MLP features are divided in multiples of this, whole cache lines in every dtype
TOKENS_ALIGNED: Final = 8  # rows of the head are divided in multiples of this


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of a dimension.

    Args:
        real: elements of the whole dimension.
        padded: elements of the whole dimension with its padding, which is at the end.
        start, stop: this rank's elements among the padded ones.
    """

    real: int
    padded: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements of this rank, padding included."""
        return self.stop - self.start

    @property
    def num_real(self) -> int:
        """Elements of this rank without padding; they come first."""
        return max(0, min(self.stop, self.real) - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """One rank's part of each dimension.

    The query heads of one key and value head may be divided among several ranks, each of which then has a copy of that
    head. So `kv_heads` counts copies: each serves the same number of query heads, in order, and copy i is of key and
    value head i // copies_per_kv_head.

    Args:
        heads: query heads.
        kv_heads: copies of key and value heads.
        copies_per_kv_head: at least 1.
        intermediate: features between the MLP's two products.
        vocab: rows of the head; the embedding is whole on every rank.
    """

    rank: int
    num_ranks: int
    heads: Share
    kv_heads: Share
    copies_per_kv_head: int
    intermediate: Share
    vocab: Share

    @property
    def kv_head_idxs(self) -> tuple[int | None, ...]:
        """The key and value head of each copy on this rank; None for padding."""
        real = self.kv_heads.start + self.kv_heads.num_real
        return tuple(
            copy // self.copies_per_kv_head if copy < real else None
            for copy in range(self.kv_heads.start, self.kv_heads.stop)
        )

    def local(self, spec: ModelSpec) -> ModelSpec:
        """The architecture of this rank's part; embedding, residual stream and vocabulary are not divided."""
        totals = (spec.q_size, spec.kv_size * self.copies_per_kv_head)
        return replace(
            spec,
            qk_norm_totals=totals if spec.qk_norm_whole and self.num_ranks > 1 else None,
            num_heads=self.heads.size,
            num_kv_heads=self.kv_heads.size,
            intermediate_size=self.intermediate.size,
        )

    def weight_elements(self, spec: ModelSpec) -> int:
        """Elements of all weights that this rank holds, padding included."""
        tied = replace(spec, tied_embeddings=True)
        num_head = 0 if spec.tied_embeddings else self.vocab.size * spec.hidden_size
        return self.local(tied).num_parameters + num_head


def why_indivisible(spec: ModelSpec) -> str:
    """Why a model's weights cannot be divided among ranks; empty if they can."""
    if spec.full_head_dim is not None or spec.layer_input_size or spec.num_borrowing_layers:
        return "whose layers are not all alike"
    if spec.mixer is not None or spec.gates_attention:
        return "whose layers do not all have plain attention"
    return "which has experts" if spec.num_experts else ""


def require_divisible(spec: ModelSpec) -> None:
    """Raise ConfigError for a model whose weights cannot be divided among ranks."""
    if why := why_indivisible(spec):
        raise ConfigError(f"a {spec.family} model, {why}, cannot be shared by several ranks: use one")


def plan_shards(spec: ModelSpec, num_ranks: int, *, group_size: int = 1) -> tuple[ShardPlan, ...]:
    """The plan of every rank, in order.

    Args:
        group_size: input features that share a scale in quantised weights; a part of the MLP holds whole groups.

    Raises:
        ConfigError: the model cannot be divided among `num_ranks` ranks.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ConfigError(f"a model cannot be shared by {num_ranks} ranks: 1 to {MAX_RANKS} are possible")
    if num_ranks > 1:
        require_divisible(spec)
    group = spec.num_heads // spec.num_kv_heads
    copies = copies_per_kv_head(group, spec.num_kv_heads, num_ranks)
    num_copies = spec.num_kv_heads * copies
    num_served = group // copies
    features = lcm(group_size, gcd(FEATURES_ALIGNED, spec.intermediate_size))
    return tuple(
        ShardPlan(
            rank=rank,
            num_ranks=num_ranks,
            heads=share(spec.num_heads, rank, num_ranks, aligned=-(-num_copies // num_ranks) * num_served),
            kv_heads=share(num_copies, rank, num_ranks),
            copies_per_kv_head=copies,
            intermediate=share(spec.intermediate_size, rank, num_ranks, aligned=features),
            vocab=share(spec.vocab_size, rank, num_ranks, aligned=TOKENS_ALIGNED),
        )
        for rank in range(num_ranks)
    )


def share(real: int, rank: int, num_ranks: int, *, aligned: int = 1) -> Share:
    """A rank's part of `real` elements; its size is a multiple of `aligned`."""
    size = -(-real // (num_ranks * aligned)) * aligned
    return Share(real=real, padded=size * num_ranks, start=rank * size, stop=(rank + 1) * size)


def copies_per_kv_head(group: int, num_kv_heads: int, num_ranks: int) -> int:
    """The number of copies of each key and value head, among which its `group` query heads are divided. It is the
    number with the smallest part of the attention per rank, and the lowest of equal ones.

    Each query head costs two products of one head's width; each copy costs two more, and space in the cache.
    """

    def cost(copies: int) -> int:
        num_copies = -(-num_kv_heads * copies // num_ranks)
        return num_copies * (group // copies + 1)

    return min((copies for copies in range(1, group + 1) if group % copies == 0), key=cost)
