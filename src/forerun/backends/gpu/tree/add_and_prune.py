"""Adds children to the tree, and removes all nodes that are not among the likeliest.

Legend: N the largest number of nodes, W nodes of a batch, C children of each.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.tree.device_tree import bits_of, has_bit, num_before, order_of


@triton.jit
def add_and_prune(nodes, batch_W, children, TREE: tl.constexpr):
    """Keep the `horizon` likeliest of the nodes and of the batch's children, by (cost, depth, number).

    cost(child) = cost(parent) - log_prob(child). `nodes` is a `TreeNodes` of [N], batch_W [W] the parents or -1,
    `children` a `TopK` of [W, C], TREE a `TreeShape`.

    The result is that of `BestFirstGrowth.add_children` followed by a cut at the horizon, except in two cases: of equal
    costs at the edge of the horizon the shallower node is kept, and a removed node of a chain may be added again as a
    guess of the draft. The number of nodes never decreases, so no place becomes empty. The kernel loads everything,
    waits at a barrier, then stores.
    """
    NUM_ALL: tl.constexpr = TREE.width * TREE.num_children
    node = tl.arange(0, TREE.capacity)
    child = tl.arange(0, TREE.child_block)
    tokens = tl.load(nodes.tokens + node)
    costs = tl.load(nodes.costs + node)
    depths = tl.load(nodes.depths + node)
    ancestors = tl.load(nodes.ancestors + node)
    draft_rows = tl.load(nodes.draft_rows + node)
    is_used = costs < float("inf")

    parent = tl.load(batch_W + child // TREE.num_children, mask=child < NUM_ALL, other=-1)
    is_child = parent >= 0
    new_tokens = tl.load(children.tokens + child, mask=child < NUM_ALL, other=0)
    log_probs = tl.load(children.log_probs + child, mask=child < NUM_ALL, other=0.0)
    above = tl.load(nodes.ancestors + parent, mask=is_child, other=0)
    new_depths = tl.load(nodes.depths + parent, mask=is_child, other=0) + 1
    new_costs = tl.load(nodes.costs + parent, mask=is_child, other=float("inf"))
    new_costs -= tl.where(log_probs > 0.0, 0.0, log_probs)  # Rounding may leave a log-probability just above zero.
    is_sibling = (ancestors ^ bits_of(node))[None, :] == above[:, None]
    is_same = is_sibling & is_used[None, :] & (tokens[None, :] == new_tokens[:, None])
    is_new = (
        is_child & (tl.sum(is_same.to(tl.int32), 1) == 0) & (new_costs < float("inf"))
    )  # A NaN compares false, so it is left out too.

    order = order_of(tl.where(is_used, costs, 0.0), depths, node)
    new_order = order_of(tl.where(is_new, new_costs, 0.0), new_depths, TREE.capacity + child)
    num_likelier = num_before(order, order, is_used) + num_before(order, new_order, is_new)
    new_num_likelier = num_before(new_order, order, is_used) + num_before(new_order, new_order, is_new)
    is_kept = is_used & (num_likelier < TREE.horizon)
    is_taken = is_new & (new_num_likelier < TREE.horizon)
    place = tl.cumsum(is_kept.to(tl.int32), 0) - 1
    num_kept = tl.sum(is_kept.to(tl.int32), 0)
    new_place = num_kept + tl.cumsum(is_taken.to(tl.int32), 0) - 1
    bits = tl.where(is_kept, bits_of(tl.where(is_kept, place, 0)), 0)
    moved = tl.sum(tl.where(has_bit(ancestors, node), bits[None, :], 0), 1)
    new_ancestors = tl.sum(tl.where(has_bit(above, node), bits[None, :], 0), 1) | bits_of(new_place)

    tl.debug_barrier()  # Every thread has read before any writes.
    write_nodes(nodes, place, is_kept, tokens, depths, costs, moved, draft_rows)
    not_expanded = tl.zeros_like(child) - 1
    write_nodes(nodes, new_place, is_taken, new_tokens, new_depths, new_costs, new_ancestors, not_expanded)
    tl.debug_barrier()  # Every thread has written before any reads.


@triton.jit
def write_nodes(nodes, place, is_there, tokens, depths, costs, ancestors, draft_rows):
    """Store nodes at their places."""
    tl.store(nodes.tokens + place, tokens, mask=is_there)
    tl.store(nodes.depths + place, depths, mask=is_there)
    tl.store(nodes.costs + place, costs, mask=is_there)
    tl.store(nodes.ancestors + place, ancestors, mask=is_there)
    tl.store(nodes.draft_rows + place, draft_rows, mask=is_there)
