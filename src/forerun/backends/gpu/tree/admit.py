"""Taking children into the tree, and forgetting what has fallen out of its horizon.

Legend: N most nodes, W nodes of a batch, C children of each.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.tree.device_tree import bits_of, has_bit, num_before, order_of


@triton.jit
def admit(
    tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, batch_W, child_tokens_WC, child_log_probs_WC,
    HORIZON: tl.constexpr, CAPACITY: tl.constexpr, NUM_CHILDREN: tl.constexpr, NUM_ALL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Keep the HORIZON likeliest of the nodes and of the batch's children, by (cost, depth, number).

    The nodes are those that `BestFirstGrowth.add_children` and a cut at HORIZON keep, but for two cases: where costs
    tie at the horizon's edge the shallower stays, and a chain's node that was forgotten may come back as a guess of the
    draft. The number of nodes never falls, so no place falls empty. All is one level of loads, a barrier, and one of
    stores.
    """
    node, child = tl.arange(0, CAPACITY), tl.arange(0, BLOCK)
    tokens, costs, depths = tl.load(tokens_N + node), tl.load(costs_N + node), tl.load(depths_N + node)
    ancestors, draft_rows = tl.load(ancestors_N + node), tl.load(draft_rows_N + node)
    is_used = costs < float("inf")

    parent = tl.load(batch_W + child // NUM_CHILDREN, mask=child < NUM_ALL, other=-1)
    is_child = parent >= 0
    new_tokens = tl.load(child_tokens_WC + child, mask=child < NUM_ALL, other=0)
    log_probs = tl.load(child_log_probs_WC + child, mask=child < NUM_ALL, other=0.0)
    above = tl.load(ancestors_N + parent, mask=is_child, other=0)
    new_depths = tl.load(depths_N + parent, mask=is_child, other=0) + 1
    new_costs = tl.load(costs_N + parent, mask=is_child, other=float("inf"))
    new_costs -= tl.where(log_probs > 0.0, 0.0, log_probs)  # rounding may leave a hair above zero
    is_sibling = (ancestors ^ bits_of(node))[None, :] == above[:, None]
    is_same = is_sibling & is_used[None, :] & (tokens[None, :] == new_tokens[:, None])
    is_new = is_child & (tl.sum(is_same.to(tl.int32), 1) == 0) & (new_costs < float("inf"))  # not if NaN either

    order = order_of(tl.where(is_used, costs, 0.0), depths, node)
    new_order = order_of(tl.where(is_new, new_costs, 0.0), new_depths, CAPACITY + child)
    rank = num_before(order, order, is_used) + num_before(order, new_order, is_new)
    new_rank = num_before(new_order, order, is_used) + num_before(new_order, new_order, is_new)
    is_kept, is_taken = is_used & (rank < HORIZON), is_new & (new_rank < HORIZON)
    place, num_kept = tl.cumsum(is_kept.to(tl.int32), 0) - 1, tl.sum(is_kept.to(tl.int32), 0)
    new_place = num_kept + tl.cumsum(is_taken.to(tl.int32), 0) - 1
    bits = tl.where(is_kept, bits_of(tl.where(is_kept, place, 0)), 0)
    moved = tl.sum(tl.where(has_bit(ancestors, node), bits[None, :], 0), 1)
    new_ancestors = tl.sum(tl.where(has_bit(above, node), bits[None, :], 0), 1) | bits_of(new_place)

    tl.debug_barrier()  # all have read before one writes
    write(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, place, is_kept,
          tokens, depths, costs, moved, draft_rows)  # fmt: skip
    write(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, new_place, is_taken,
          new_tokens, new_depths, new_costs, new_ancestors, tl.full((BLOCK,), -1, tl.int32))  # fmt: skip
    tl.debug_barrier()  # all have written before one reads


@triton.jit
def write(
    tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, place, is_there, tokens, depths, costs, ancestors,
    draft_rows,
):  # fmt: skip
    """Store nodes at their places."""
    tl.store(tokens_N + place, tokens, mask=is_there)
    tl.store(depths_N + place, depths, mask=is_there)
    tl.store(costs_N + place, costs, mask=is_there)
    tl.store(ancestors_N + place, ancestors, mask=is_there)
    tl.store(draft_rows_N + place, draft_rows, mask=is_there)
