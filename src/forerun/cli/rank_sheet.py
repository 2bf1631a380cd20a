"""The lines that `inspect` prints about the part of a model that each rank would hold."""

from collections.abc import Sequence
from typing import Any

from forerun.cli.model_sheet import size
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import Share, plan_shards


def rank_sheets(spec: ModelSpec, num_ranks: int, element_bytes: int | None) -> list[dict[str, Any]]:
    """One sheet for each rank. Pairs of numbers are without and with padding.

    Raises:
        ConfigError: this many ranks cannot share the model.
    """
    return [
        {
            "rank": plan.rank,
            "heads": numbers(plan.heads),
            "kv_heads": [idx for idx in plan.kv_head_idxs if idx is not None],
            "kv_head_copies": plan.kv_heads.size,
            "intermediate": numbers(plan.intermediate),
            "vocab": numbers(plan.vocab),
            "weights_bytes": None if element_bytes is None else plan.weight_elements(spec) * element_bytes,
            "kv_bytes_per_token": None if element_bytes is None else plan.local(spec).kv_bytes_per_token(element_bytes),
        }
        for plan in plan_shards(spec, num_ranks)
    ]


def numbers(share: Share) -> tuple[int, int]:
    return share.num_real, share.size


def rank_rows(sheets: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """A line for each rank."""
    return [
        (
            f"rank {sheet['rank']}",
            f"heads {part(sheet['heads'])}, kv {','.join(map(str, sheet['kv_heads'])) or 'none'}"
            f"{padding(sheet['kv_head_copies'] - len(sheet['kv_heads']))}, MLP {part(sheet['intermediate'])}, "
            f"head rows {part(sheet['vocab'])}: {size(sheet['weights_bytes'])}, "
            f"{size(sheet['kv_bytes_per_token'])} per token",
        )
        for sheet in sheets
    ]


def part(numbers: tuple[int, int]) -> str:
    """The number of real elements, and of padding."""
    real, padded = numbers
    return f"{real}{padding(padded - real)}"


def padding(number: int) -> str:
    return f" (+{number} padding)" if number else ""
