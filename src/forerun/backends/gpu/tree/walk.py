"""Follows the target's tokens down the tree, and writes the outcome of the round.

Legend: N the largest number of nodes, R rows of the target's pass, P positions of the text.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.sampling.join_tiles import Sampled
from forerun.backends.gpu.tree import device_tree as layout
from forerun.backends.gpu.tree.device_tree import (
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

OUTCOME_HEADER = tl.constexpr(layout.OUTCOME_HEADER)
MOVES_HEADER = tl.constexpr(layout.MOVES_HEADER)


def walk(tree: DeviceTree, sampled: Sampled, text_P: Tensor | None = None, *, overlaps: bool = False) -> None:
    """Walk, write the outcome and the moves of both caches, and make the target's last token the new root.

    Args:
        sampled: the target's token after each node, and the two best totals there.
        text_P: int32, the text, with the root at position `committed`; the new tokens are appended. None: not kept.
    """
    walk_kernel[(1,)](
        tree.nodes, tree.header, sampled, tree.outcome, tree.target_moves, tree.draft_moves,
        text_P, 0 if text_P is None else text_P.shape[0], TREE=tree.shape, OVERLAPS=overlaps,
        **launch_options(num_warps=4 if tree.capacity <= 32 else 8, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def walk_kernel(
    nodes, header, sampled, outcome, target_moves, draft_moves, text_P, max_text,
    TREE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """accepted(node) = accepted(parent) and token(node) == sampled(parent); the root is accepted.

    `nodes` is a `TreeNodes` of [N], `sampled` a `Sampled` of [R], text_P [max_text] or None, outcome and moves as in
    `DeviceTree`. There is one program.
    """
    CAPACITY: tl.constexpr = TREE.capacity
    await_inputs(OVERLAPS)
    node = tl.arange(0, CAPACITY)
    tokens = tl.load(nodes.tokens + node)
    costs = tl.load(nodes.costs + node)
    depths = tl.load(nodes.depths + node)
    ancestors = tl.load(nodes.ancestors + node)
    draft_rows = tl.load(nodes.draft_rows + node)
    is_used = costs < float("inf")
    next_tokens = tl.load(sampled.tokens + node, mask=is_used, other=-1)
    committed = tl.load(header + COMMITTED)
    draft_committed = tl.load(header + DRAFT_COMMITTED)
    num_draft_rows = tl.load(header + NUM_DRAFT_ROWS)

    is_path = find_path(tokens, ancestors, next_tokens, node, is_used)  # The root is on the path.
    path_len = tl.sum(is_path.to(tl.int32), 0)
    is_end = is_path & (depths == path_len - 1)
    bonus = tl.sum(tl.where(is_end, next_tokens, 0), 0)

    write_moves(target_moves, committed + 1, is_path & (node > 0), depths, committed + node)
    # Above the root's row stand those of the tokens before it that the draft's cache lacked.
    root_row = committed - draft_committed
    is_drafted = is_path & (draft_rows >= 0) & (node < (1 if TREE.rereads else CAPACITY))
    num_drafted = tl.sum(is_drafted.to(tl.int32), 0)
    first_slot = draft_committed + root_row + 1
    is_moved = is_drafted & (node > 0)
    write_moves(draft_moves, first_slot, is_moved, depths, draft_committed + draft_rows)
    num_kept = path_len if TREE.follows else tl.where(num_drafted > 0, root_row + num_drafted, 0)
    new_committed = committed + path_len
    new_draft_committed = draft_committed + num_kept

    best = tl.load(sampled.bests + node, mask=is_path)
    second = tl.load(sampled.seconds + node, mask=is_path)
    emitted = outcome + OUTCOME_HEADER + depths
    tl.store(emitted, next_tokens, mask=is_path)
    tl.store(emitted + CAPACITY, (best - second).to(tl.int32, bitcast=True), mask=is_path)
    tl.store(emitted + 2 * CAPACITY, best.to(tl.int32, bitcast=True), mask=is_path)
    tl.store(outcome + NUM_TOKENS, path_len)
    tl.store(outcome + NUM_VERIFIED, tl.sum(is_used.to(tl.int32), 0))
    tl.store(outcome + NUM_DRAFTED_ROWS, num_draft_rows)
    tl.store(outcome + NUM_BEHIND, new_committed - new_draft_committed)
    if text_P is not None:
        text_place = committed + 1 + depths
        tl.store(text_P + text_place, next_tokens, mask=is_path & (text_place < max_text))
    reset_to_root(nodes, node, bonus)
    tl.store(header + COMMITTED, new_committed)
    tl.store(header + DRAFT_COMMITTED, new_draft_committed)
    tl.store(header + NUM_DRAFT_ROWS, 0)


@triton.jit
def find_path(tokens, ancestors, next_tokens, node, is_used):
    """Which nodes are accepted; the root always is."""
    is_child = (ancestors ^ bits_of(node))[:, None] == ancestors[None, :]
    is_match = is_child & (tokens[:, None] == next_tokens[None, :]) & is_used[None, :]
    is_right = (tl.sum(is_match.to(tl.int32), 1) > 0) | (node == 0)
    wrong = tl.sum(tl.where(is_used & (is_right == 0), bits_of(node), 0), 0)
    return is_used & ((ancestors & wrong) == 0)


@triton.jit
def write_moves(moves, first_slot, is_moved, depths, slots):
    """Write the source slots of a path below the root, in order."""
    tl.store(moves, tl.sum(is_moved.to(tl.int32), 0))
    tl.store(moves + 1, first_slot)
    tl.store(moves + MOVES_HEADER + depths - 1, slots, mask=is_moved)


@triton.jit
def reset_to_root(nodes, node, token):
    """Reset the tree to only a root."""
    is_root = node == 0
    tl.debug_barrier()  # Every thread has read before any writes.
    tl.store(nodes.tokens + node, tl.zeros_like(node) + token, mask=is_root)
    tl.store(nodes.depths + node, tl.zeros_like(node), mask=is_root)
    tl.store(nodes.costs + node, tl.where(is_root, 0.0, float("inf")))
    tl.store(nodes.ancestors + node, bits_of(node), mask=is_root)
    tl.store(nodes.draft_rows + node, tl.full(node.shape, -1, tl.int32))
