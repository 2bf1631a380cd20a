"""The size of a draft: the largest whose forward pass costs at most a tenth of its target's."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from forerun.core.errors import require
from forerun.core.model_spec import ModelSpec, RopeSpec

COST_SHARE: Final = 0.1  # of the target's pass of one row
MAX_LAYERS, MIN_LAYERS = 4, 2
WIDTH_SHARES: Final = (0.75, 0.5, 0.375, 0.25)  # of the target's hidden size
MLP_RATIO: Final = 8 / 3  # MLP size over hidden size, as in Llamas
MIN_WIDTH: Final = 64
HEAD_SIZE: Final = 64  # largest head of a narrow draft, so that it has enough heads


def choose_sizes(
    target: ModelSpec, vocab_size: int, pass_s: Callable[[ModelSpec], float], target_s: float
) -> ModelSpec:
    """The largest of the candidates whose pass costs at most `COST_SHARE` of the target's; else the smallest.

    Args:
        pass_s: measures a pass of a draft with these sizes, in seconds.
        target_s: seconds of a pass of the target.
    """
    candidates = list(candidate_drafts(target, vocab_size))
    for draft in candidates:
        if pass_s(draft) <= COST_SHARE * target_s:
            return draft
    return candidates[-1]


def candidate_drafts(target: ModelSpec, vocab_size: int) -> Iterator[ModelSpec]:
    """Drafts from large to small. The target's width comes first, because its layers can then be copied."""
    for num_layers in range(min(MAX_LAYERS, target.num_layers - 1), MIN_LAYERS - 1, -1):
        yield draft_spec(target, vocab_size, num_layers=num_layers)
    for share in WIDTH_SHARES:
        yield draft_spec(target, vocab_size, num_layers=MIN_LAYERS, hidden_size=int(target.hidden_size * share))


def draft_spec(target: ModelSpec, vocab_size: int, *, num_layers: int, hidden_size: int | None = None) -> ModelSpec:
    """A Llama with the target's layer shape, or a narrower one with heads of `head_size`."""
    alike = replace(
        target,
        family="llama",
        num_layers=num_layers,
        vocab_size=vocab_size,
        rope=RopeSpec(theta=target.rope.theta),
        out_bias=target.qkv_bias,
        qk_norm=False,
        window=None,
    )
    if hidden_size is None or hidden_size >= target.hidden_size:
        return alike
    head_dim = head_size(target)
    wanted = max(hidden_size, min(MIN_WIDTH, target.hidden_size))
    num_heads = max(1, round(wanted / head_dim))
    num_kv_heads = max(1, num_heads * target.num_kv_heads // target.num_heads)
    num_heads -= num_heads % num_kv_heads
    hidden_size = min(max(wanted, num_heads * head_dim), target.hidden_size)
    return replace(
        alike,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=-(-int(hidden_size * MLP_RATIO) // 32) * 32,
    )


def head_size(target: ModelSpec) -> int:
    """The head size of a draft that is narrower than its target."""
    return min(target.head_dim, HEAD_SIZE)


def require_sizes(target: ModelSpec, hidden_size: int | None) -> None:
    """Refuse a width that no draft of this target can have.

    Raises:
        ConfigError: names the allowed widths.
    """
    if hidden_size is None or hidden_size == target.hidden_size:
        return
    step, least = head_size(target), min(MIN_WIDTH, target.hidden_size)
    require(
        least <= hidden_size < target.hidden_size and hidden_size % step == 0,
        f"hidden_size {hidden_size} must be a multiple of {step}, the size of a head, from {least} to below "
        f"{target.hidden_size}, or {target.hidden_size}, which is the target's",
    )
