"""The part of a model that each rank would hold, as `inspect` prints it."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.cli.sheet import size
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import ShardPlan, Share, plan_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSheet:
    """One rank's part.

    Args:
        heads: number of query heads without and with padding.
        kv_heads: the key and value heads that it has copies of.
        kv_head_copies: number of these copies, padding included.
        intermediate: features of the MLP without and with padding.
        vocab: rows of the head without and with padding.
        weights_bytes: all weights, padding included, in the dtype used for computing; None if that is unknown.
        kv_bytes_per_token: its part of the cache.
    """

    rank: int
    heads: tuple[int, int]
    kv_heads: tuple[int, ...]
    kv_head_copies: int
    intermediate: tuple[int, int]
    vocab: tuple[int, int]
    weights_bytes: int | None
    kv_bytes_per_token: int | None


def rank_sheets(spec: ModelSpec, num_ranks: int, element_bytes: int | None) -> list[RankSheet]:
    """One sheet for each rank.

    Raises:
        ConfigError: this many ranks cannot share the model.
    """
    return [rank_sheet(spec, plan, element_bytes) for plan in plan_shards(spec, num_ranks)]


def rank_sheet(spec: ModelSpec, plan: ShardPlan, element_bytes: int | None) -> RankSheet:
    def numbers(share: Share) -> tuple[int, int]:
        return share.num_real, share.size

    return RankSheet(
        rank=plan.rank,
        heads=numbers(plan.heads),
        kv_heads=tuple(idx for idx in plan.kv_head_idxs if idx is not None),
        kv_head_copies=plan.kv_heads.size,
        intermediate=numbers(plan.intermediate),
        vocab=numbers(plan.vocab),
        weights_bytes=None if element_bytes is None else plan.weight_elements(spec) * element_bytes,
        kv_bytes_per_token=None if element_bytes is None else plan.local(spec).kv_bytes_per_token(element_bytes),
    )


def rank_rows(sheets: Sequence[RankSheet]) -> list[tuple[str, str]]:
    """A line for each rank."""
    return [
        (
            f"rank {sheet.rank}",
            f"heads {part(sheet.heads)}, kv {','.join(map(str, sheet.kv_heads)) or 'none'}"
            f"{padding(sheet.kv_head_copies - len(sheet.kv_heads))}, MLP {part(sheet.intermediate)}, "
            f"head rows {part(sheet.vocab)}: {size(sheet.weights_bytes)}, {size(sheet.kv_bytes_per_token)} per token",
        )
        for sheet in sheets
    ]


def part(numbers: tuple[int, int]) -> str:
    """The number of real elements, and of padding."""
    real, padded = numbers
    return f"{real}{padding(padded - real)}"


def padding(number: int) -> str:
    return f" (+{number} padding)" if number else ""
