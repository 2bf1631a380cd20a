"""One step of the tree's growth: add the children of the last batch, choose the next batch, fill the draft's rows.

Legend: N the largest number of nodes, W nodes of a batch, C children of each, R rows, E tree slots of all rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.sampling.join_tiles import TopK
from forerun.backends.gpu.tree.add_and_prune import add_and_prune
from forerun.backends.gpu.tree.device_tree import (
    BEFORE_ROOT,
    COMMITTED,
    DRAFT_COMMITTED,
    NUM_DRAFT_ROWS,
    DeviceTree,
    has_bit,
    num_before,
    order_of,
)
from forerun.backends.gpu.tree.write_rows import write_header, write_rows, write_successors


def grow(
    tree: DeviceTree, rows: RowTable, children: TopK | None = None, *, draft_ids: Tensor | None = None,
    spare_slot: int, overlaps: bool = False,
) -> None:  # fmt: skip
    """Choose the batch of the draft's next pass and fill its rows.

    The first step of a round has no children to add. Its pass has draft_width + 1 rows: the token before the root if
    the draft's cache lacks it, then the batch, which begins with the root. Every later pass has draft_width rows, those
    of its batch. Rows that are not needed are spare ones; once growth has ended, all rows are.

    Args:
        rows: the draft's table.
        children: the top-k after the last batch's nodes, in its order; of the first pass of a round these are the rows
            from 1 on.
        draft_ids: int32 [target's vocabulary], the draft's id of each token; None: the ids are equal.
        spare_slot: a slot of the draft's cache that the text never uses.
    """
    num_rows = tree.draft_width + (children is None)
    tree.check(rows, num_rows)
    grow_kernel[(1,)](
        tree.nodes, tree.batch_W, tree.header, children, rows.fields, tree.min_mass, draft_ids, spare_slot,
        TREE=tree.shape, ROW_BLOCK=triton.next_power_of_2(num_rows), OVERLAPS=overlaps,
        **launch_options(num_warps=tree.num_warps, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def grow_kernel(
    nodes, batch_W, header, children, rows, min_mass, draft_ids, spare_slot,
    TREE: tl.constexpr, ROW_BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """batch = the first W of the open nodes that could still lead into the horizon, by (cost, depth, number).

    Row i of it: id draft_ids[tokens[batch[i]]], position committed + depth, the next slot of the draft's cache; it sees
    the draft's prefix and the node's ancestors. `nodes` is a `TreeNodes` of [N], `children` a `TopK` of [W, C] or None
    in the first step, `rows` the draft's `RowFields`, draft_ids [target's vocabulary] or None. There is one program.
    """
    IS_FIRST: tl.constexpr = children is None
    CAPACITY: tl.constexpr = TREE.capacity
    await_inputs(OVERLAPS)
    if not IS_FIRST:
        add_and_prune(nodes, batch_W, children, TREE)
    node, row = tl.arange(0, CAPACITY), tl.arange(0, ROW_BLOCK)
    tokens, costs, depths = tl.load(nodes.tokens + node), tl.load(nodes.costs + node), tl.load(nodes.depths + node)
    ancestors, draft_rows = tl.load(nodes.ancestors + node), tl.load(nodes.draft_rows + node)
    committed, draft_committed = tl.load(header + COMMITTED), tl.load(header + DRAFT_COMMITTED)
    num_missing, before_root = committed - draft_committed, tl.load(header + BEFORE_ROOT)

    place, is_chosen = choose_batch(costs, depths, draft_rows, node, min_mass, num_missing, TREE)
    num_chosen = tl.sum(is_chosen.to(tl.int32), 0)
    first_draft_row = num_missing if IS_FIRST else tl.load(header + NUM_DRAFT_ROWS)
    draft_rows = tl.where(is_chosen, first_draft_row + place, draft_rows)
    tl.debug_barrier()  # Every thread has read before any writes.
    tl.store(nodes.draft_rows + node, draft_rows, mask=is_chosen)
    tl.store(batch_W + place, node, mask=is_chosen)
    tl.store(batch_W + row, -1, mask=(row >= num_chosen) & (row < TREE.width))
    num_draft_rows = tl.where(num_chosen > 0, first_draft_row + num_chosen, 0 if IS_FIRST else first_draft_row)
    tl.store(header + NUM_DRAFT_ROWS, num_draft_rows)

    first_row: tl.constexpr = 1 if IS_FIRST else 0
    first_slot = draft_committed + (0 if IS_FIRST else first_draft_row)
    write_header(rows, draft_committed, first_slot, TREE.width + first_row, TREE.stride)
    batch_row, read_ids = first_row + place, ids_of(tokens, is_chosen, draft_ids)
    node_slots = draft_committed + draft_rows
    write_rows(rows, batch_row, is_chosen, read_ids, committed + depths, node_slots, committed + depths + 1)
    path = rows.tree_slots + batch_row[:, None] * TREE.stride + (num_missing + depths)[None, :]
    slots = tl.broadcast_to(node_slots[None, :], (CAPACITY, CAPACITY))
    tl.store(path, slots, mask=is_chosen[:, None] & has_bit(ancestors, node))
    num_above = tl.zeros_like(node) + num_missing
    first_places = rows.tree_slots + batch_row * TREE.stride
    tl.store(first_places, tl.zeros_like(node) + draft_committed, mask=is_chosen & (num_above == 1))

    catches_up = row < tl.where(num_missing == 1, first_row, 0)
    is_other = ((row < first_row) | (row >= first_row + num_chosen)) & (row < TREE.width + first_row)
    read_id = ids_of(tl.where(catches_up, before_root, 0), catches_up, draft_ids)
    slot = tl.where(catches_up, draft_committed, spare_slot)
    write_successors(rows, row, is_other, read_id, draft_committed, slot, TREE.stride)


@triton.jit
def ids_of(tokens, is_there, draft_ids):
    """The draft's ids of tokens; if draft_ids is a table, 0 where there is no token."""
    read_ids = tokens
    if draft_ids is not None:
        read_ids = tl.load(draft_ids + tokens, mask=is_there, other=0)
    return read_ids


@triton.jit
def choose_batch(costs, depths, draft_rows, node, min_mass, num_missing, TREE: tl.constexpr):
    """Each node's place in the next batch, and whether it is in it.

    Nothing is expanded if the chances of the whole batch add up to less than min_mass, or while the draft's cache lacks
    more than one token: the first pass of a round has a row for the token before the root, and for no other.
    """
    is_used = costs < float("inf")
    last_cost = tl.max(tl.where(is_used, costs, 0.0), 0)
    max_cost = tl.where(tl.sum(is_used.to(tl.int32), 0) < TREE.horizon, float("inf"), last_cost)
    could_lead = is_used & (draft_rows < 0) & (costs < max_cost)
    order = order_of(tl.where(could_lead, costs, 0.0), depths, node)
    place = num_before(order, order, could_lead)
    mass = tl.sum(tl.where(could_lead & (place < TREE.width), tl.exp(-costs), 0.0), 0)
    size = tl.where((mass >= min_mass) & (num_missing <= 1), TREE.width, 0)
    return place, could_lead & (place < size)
