"""Prompt lookup on the device: the tokens after an earlier occurrence of the text's end, as a chain below the root.

Legend: P positions of the text, A match lengths from 0 on, N nodes of a chain.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.tree.device_tree import COMMITTED, DeviceTree, bits_of
from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH

BLOCK: Final = 2048  # Places of the text that are compared at a time.
NUM_WARPS: Final = 8
MOST_PLACES = tl.constexpr(1 << 28)


def chain_costs(log_probs: Sequence[Sequence[float]]) -> Tensor:
    """[MAX_MATCH + 1, N] float32, on the host: a chain's costs from its first token on, by match length.

    Args:
        log_probs: for each match length from MIN_MATCH on those of a chain's N tokens, each given those before.
    """
    # 0.0 - x, not -x: costs sort by their bits, and minus zero has a sign
    sums = [list(accumulate(0.0 - min(value, 0.0) for value in values)) for values in log_probs]
    return torch.tensor([[0.0] * len(sums[0])] * MIN_MATCH + sums)


def add_lookup_chain(tree: DeviceTree, text_P: Tensor, costs_AN: Tensor, *, overlaps: bool = False) -> None:
    """Add the continuation below the root of a tree that has no other node yet.

    Like `PromptIndex.continuation`, it takes the longest match of the last MAX_MATCH to MIN_MATCH tokens, the latest of
    these, and repeats the tokens after it if there are too few. The chain has verify_width - 1 tokens, as many as can
    be verified.

    Args:
        text_P: int32, as for `walk`.
        costs_AN: float32, N = verify_width - 1; see `chain_costs`. The host may change it between rounds.
    """
    num_costs = tree.verify_width - 1
    assert costs_AN.shape == (MAX_MATCH + 1, num_costs), f"costs {tuple(costs_AN.shape)} for {num_costs} nodes"
    lookup_kernel[(1,)](
        tree.nodes, tree.header, text_P, costs_AN,
        NUM_NODES=tree.verify_width, CAPACITY=tree.capacity, LEAST=MIN_MATCH, MOST=MAX_MATCH, BLOCK=BLOCK,
        OVERLAPS=overlaps, **launch_options(num_warps=NUM_WARPS, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def lookup_kernel(
    nodes, header, text_P, costs_AN,
    NUM_NODES: tl.constexpr, CAPACITY: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """token(node n) = text[p + (n - 1) mod (length - p)], p behind the longest match of the text's end, n from 1 on.

    text_P [P], costs_AN [match lengths, NUM_NODES - 1]; node n's parent is node n - 1. One program reads the text.
    """
    await_inputs(OVERLAPS)
    length = tl.load(header + COMMITTED) + 1
    match, place = find_match(text_P, length, LEAST, MOST, BLOCK)
    node = tl.arange(0, CAPACITY)
    is_added = (node > 0) & (node < tl.where(match > 0, NUM_NODES, 0))
    step = (node - 1) % tl.maximum(length - place, 1)
    tokens = tl.load(text_P + place + step, mask=is_added)
    costs = tl.load(costs_AN + match * (NUM_NODES - 1) + node - 1, mask=is_added)
    tl.store(nodes.tokens + node, tokens, mask=is_added)
    tl.store(nodes.costs + node, costs, mask=is_added)
    tl.store(nodes.depths + node, node, mask=is_added)
    tl.store(nodes.ancestors + node, (bits_of(node) - 1) | bits_of(node), mask=is_added)
    tl.store(nodes.draft_rows + node, tl.full((CAPACITY,), -1, tl.int32), mask=is_added)


@triton.jit
def find_match(text_P, length, LEAST: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """The length of the best match of the text's end, 0 if there is none, and the place of the token after it."""
    best = tl.zeros((BLOCK,), tl.int32)
    for start in range(1, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_same = place < length
        match = tl.zeros((BLOCK,), tl.int32)
        for back in tl.static_range(1, MOST + 1):
            last = tl.load(text_P + tl.maximum(length - back, 0))
            seen = tl.load(text_P + place - back, mask=(place < length) & (place >= back), other=-1)
            is_same = is_same & (seen == last) & (place >= back)
            match += is_same.to(tl.int32)
        best = tl.maximum(best, tl.where(match >= LEAST, match * MOST_PLACES + place, 0))
    found = tl.max(best, 0)
    return found // MOST_PLACES, found % MOST_PLACES
