"""Following the target's choices down the tree, and what a round leaves behind.

Legend: N most nodes, R rows of the target's pass, P places of the text.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options
from forerun.backends.gpu.tree import device_tree as layout
from forerun.backends.gpu.tree.device_tree import (
    BEFORE_ROOT,
    COMMITTED,
    DRAFT_COMMITTED,
    NUM_BEHIND,
    NUM_DRAFT_ROWS,
    NUM_DRAFTED_ROWS,
    NUM_TOKENS,
    NUM_VERIFIED,
    DeviceTree,
    bits_of,
)

OUTCOME_HEAD, MOVES_HEAD = tl.constexpr(layout.OUTCOME_HEAD), tl.constexpr(layout.MOVES_HEAD)


def accept(
    tree: DeviceTree, choices_R: Tensor, bests_R: Tensor, seconds_R: Tensor, text_P: Tensor | None = None, *,
    overlaps: bool = False,
) -> None:  # fmt: skip
    """Walk, write the outcome and the moves of both caches, and plant the target's last choice as the new root.

    Args:
        choices_R, bests_R, seconds_R: int32, float32, float32: the target's choice after each node, and the two best
            total scores there.
        text_P: int32, the text with the root at place `committed`, to be continued; None: nobody reads it.
    """
    accept_kernel[(1,)](
        tree.tokens_N, tree.depths_N, tree.costs_N, tree.ancestors_N, tree.draft_rows_N, tree.facts,
        choices_R, bests_R, seconds_R, tree.outcome, tree.target_moves, tree.draft_moves,
        tree.tokens_N if text_P is None else text_P, 0 if text_P is None else text_P.shape[0],
        HAS_TEXT=text_P is not None, CAPACITY=tree.capacity, OVERLAPS=overlaps,
        **launch_options(num_warps=4 if tree.capacity <= 32 else 8, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def accept_kernel(
    tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, facts, choices_R, bests_R, seconds_R, outcome, target_moves,
    draft_moves, text_P, max_text, HAS_TEXT: tl.constexpr, CAPACITY: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program. A node is accepted if it and all nodes above it are what was chosen at their parents."""
    await_inputs(OVERLAPS)
    node = tl.arange(0, CAPACITY)
    tokens, costs, depths = tl.load(tokens_N + node), tl.load(costs_N + node), tl.load(depths_N + node)
    ancestors, draft_rows, is_used = tl.load(ancestors_N + node), tl.load(draft_rows_N + node), costs < float("inf")
    choices = tl.load(choices_R + node, mask=is_used, other=-1)
    committed, draft_committed = tl.load(facts + COMMITTED), tl.load(facts + DRAFT_COMMITTED)
    num_draft_rows = tl.load(facts + NUM_DRAFT_ROWS)

    is_path = find_path(tokens, ancestors, choices, node, is_used)  # the root included
    path_len = tl.sum(is_path.to(tl.int32), 0)
    is_end = is_path & (depths == path_len - 1)
    bonus, end_token = tl.sum(tl.where(is_end, choices, 0), 0), tl.sum(tl.where(is_end, tokens, 0), 0)

    write_moves(target_moves, committed + 1, is_path & (node > 0), depths, committed + node)
    # Above the root's row stands that of the token before it, if the draft's cache lacked that.
    root_row = committed - draft_committed
    is_drafted = is_path & (draft_rows >= 0)
    num_drafted = tl.sum(is_drafted.to(tl.int32), 0)
    write_moves(draft_moves, draft_committed + root_row + 1, is_drafted & (node > 0), depths,
                draft_committed + draft_rows)  # fmt: skip
    new_committed = committed + path_len
    new_draft_committed = draft_committed + tl.where(num_drafted > 0, root_row + num_drafted, 0)

    best, second = tl.load(bests_R + node, mask=is_path), tl.load(seconds_R + node, mask=is_path)
    emitted = outcome + OUTCOME_HEAD + depths
    tl.store(emitted, choices, mask=is_path)
    tl.store(emitted + CAPACITY, (best - second).to(tl.int32, bitcast=True), mask=is_path)
    tl.store(emitted + 2 * CAPACITY, best.to(tl.int32, bitcast=True), mask=is_path)
    tl.store(outcome + NUM_TOKENS, path_len)
    tl.store(outcome + NUM_VERIFIED, tl.sum(is_used.to(tl.int32), 0))
    tl.store(outcome + NUM_DRAFTED_ROWS, num_draft_rows)
    tl.store(outcome + NUM_BEHIND, new_committed - new_draft_committed)
    if HAS_TEXT:
        text_place = committed + 1 + depths
        tl.store(text_P + text_place, choices, mask=is_path & (text_place < max_text))
    plant(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, node, bonus)
    tl.store(facts + COMMITTED, new_committed)
    tl.store(facts + DRAFT_COMMITTED, new_draft_committed)
    tl.store(facts + BEFORE_ROOT, end_token)
    tl.store(facts + NUM_DRAFT_ROWS, 0)


@triton.jit
def find_path(tokens, ancestors, choices, node, is_used):
    """Which nodes are accepted; the root always is."""
    is_child = (ancestors ^ bits_of(node))[:, None] == ancestors[None, :]
    is_match = is_child & (tokens[:, None] == choices[None, :]) & is_used[None, :]
    is_right = (tl.sum(is_match.to(tl.int32), 1) > 0) | (node == 0)
    wrong = tl.sum(tl.where(is_used & (is_right == 0), bits_of(node), 0), 0)
    return is_used & ((ancestors & wrong) == 0)


@triton.jit
def write_moves(moves, first_slot, is_moved, depths, slots):
    """List the slots of a path below the root in order."""
    tl.store(moves, tl.sum(is_moved.to(tl.int32), 0))
    tl.store(moves + 1, first_slot)
    tl.store(moves + MOVES_HEAD + depths - 1, slots, mask=is_moved)


@triton.jit
def plant(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, node, token):
    """Leave a root alone."""
    is_root = node == 0
    tl.debug_barrier()  # all have read before one writes
    tl.store(tokens_N + node, tl.zeros_like(node) + token, mask=is_root)
    tl.store(depths_N + node, tl.zeros_like(node), mask=is_root)
    tl.store(costs_N + node, tl.where(is_root, 0.0, float("inf")))
    tl.store(ancestors_N + node, bits_of(node), mask=is_root)
    tl.store(draft_rows_N + node, tl.full(node.shape, -1, tl.int32))
