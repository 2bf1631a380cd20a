"""One step of the tree's growth: add the children of the last batch, choose the next batch, fill the draft's rows.

Legend: N the largest number of nodes, W nodes of a batch, C children of each, R rows, E tree slots of all rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.sampling.join_tiles import TopK
from forerun.backends.gpu.tree.add_and_prune import add_and_prune
from forerun.backends.gpu.tree.device_tree import (
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
    tree: DeviceTree, rows: RowTable, text_P: Tensor, children: TopK | None = None, *,
    draft_ids: Tensor | None = None, spare_slot: int, overlaps: bool = False,
) -> None:  # fmt: skip
    """Choose the batch of the draft's next pass and fill its rows.

    The first step of a round has no children to add. Its pass has most_behind + draft_width rows: the tokens before the
    root that the draft's cache lacks, then the batch, which begins with the root. Every later pass has draft_width
    rows, those of its batch. Rows that are not needed are spare ones; once growth has ended, all rows are.

    Args:
        rows: the draft's table.
        text_P: int32, as for `walk`.
        children: the top-k after the last batch's nodes, in its order; of the first pass of a round these are the rows
            from `most_behind` on.
        draft_ids: int32 [target's vocabulary], the draft's id of each token; None: the ids are equal.
        spare_slot: a slot of the draft's cache that the text never uses.
    """
    most_behind = tree.shape.most_behind
    num_rows = tree.draft_width + (most_behind if children is None else 0)
    tree.check(rows, num_rows)
    grow_kernel[(1,)](
        tree.nodes, tree.batch_W, tree.header, children, rows.fields, text_P, tree.min_mass, draft_ids, spare_slot,
        TREE=tree.shape, ROW_BLOCK=triton.next_power_of_2(num_rows), BEHIND=triton.next_power_of_2(most_behind),
        OVERLAPS=overlaps,
        **launch_options(num_warps=tree.num_warps, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def grow_kernel(
    nodes, batch_W, header, children, rows, text_P, min_mass, draft_ids, spare_slot,
    TREE: tl.constexpr, ROW_BLOCK: tl.constexpr, BEHIND: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """batch = the first W of the open nodes that could still lead into the horizon, by (cost, depth, number).

    Row i of it: id draft_ids[tokens[batch[i]]], position committed + depth, the next slot of the draft's cache; it sees
    the draft's prefix and the node's ancestors. `nodes` is a `TreeNodes` of [N], `children` a `TopK` of [W, C] or None
    in the first step, `rows` the draft's `RowFields`, text_P [places of the text], draft_ids [target's vocabulary] or
    None. There is one program.
    """
    IS_FIRST: tl.constexpr = children is None
    CAPACITY: tl.constexpr = TREE.capacity
    await_inputs(OVERLAPS)
    if not IS_FIRST:
        add_and_prune(nodes, batch_W, children, TREE)
    node = tl.arange(0, CAPACITY)
    row = tl.arange(0, ROW_BLOCK)
    tokens = tl.load(nodes.tokens + node)
    costs = tl.load(nodes.costs + node)
    depths = tl.load(nodes.depths + node)
    ancestors = tl.load(nodes.ancestors + node)
    draft_rows = tl.load(nodes.draft_rows + node)
    committed = tl.load(header + COMMITTED)
    draft_committed = tl.load(header + DRAFT_COMMITTED)
    num_missing = committed - draft_committed

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

    first_row: tl.constexpr = TREE.most_behind if IS_FIRST else 0
    first_slot = draft_committed + (0 if IS_FIRST else first_draft_row)
    write_header(rows, draft_committed, first_slot, TREE.width + first_row, TREE.stride)
    batch_row = first_row + place
    read_ids = ids_of(tokens, is_chosen, draft_ids)
    node_slots = draft_committed + draft_rows
    write_rows(rows, batch_row, is_chosen, read_ids, committed + depths, node_slots, committed + depths + 1)
    path = rows.tree_slots + batch_row[:, None] * TREE.stride + (num_missing + depths)[None, :]
    slots = tl.broadcast_to(node_slots[None, :], (CAPACITY, CAPACITY))
    tl.store(path, slots, mask=is_chosen[:, None] & has_bit(ancestors, node))
    behind = tl.arange(0, BEHIND)
    write_behind(rows, batch_row, is_chosen, behind, tl.zeros_like(node) + num_missing, draft_committed, TREE.stride)

    num_first = tl.where(num_missing <= TREE.most_behind, tl.minimum(num_missing, first_row), 0)
    write_missing(rows, row, row < num_first, behind, draft_committed, text_P, draft_ids, TREE.stride)
    zeros = tl.zeros_like(row)
    is_of_batch = (row >= first_row) & (row < first_row + num_chosen)
    is_spare = (row >= num_first) & (row < first_row + TREE.width) & (is_of_batch == 0)
    write_successors(rows, row, is_spare, zeros, draft_committed, zeros + spare_slot, TREE.stride)


@triton.jit
def write_missing(rows, row, is_there, behind, first_slot, text_P, draft_ids, stride):
    """Store the rows of the tokens that the draft's cache lacks, the first of which has this slot and place."""
    place = first_slot + row
    read_ids = ids_of(tl.load(text_P + place, mask=is_there, other=0), is_there, draft_ids)
    write_rows(rows, row, is_there, read_ids, place, place, place + 1)
    write_behind(rows, row, is_there, behind, row + 1, first_slot, stride)


@triton.jit
def write_behind(rows, row, is_there, behind, counts, first_slot, stride):
    """Let rows see the first `counts` of the tokens that the draft's cache lacked, in slots from `first_slot`."""
    places = row[:, None] * stride + behind[None, :]
    is_seen = is_there[:, None] & (behind[None, :] < counts[:, None])
    tl.store(rows.tree_slots + places, tl.broadcast_to(first_slot + behind[None, :], is_seen.shape), mask=is_seen)


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
    more tokens before the root than the first pass of a round has rows for.
    """
    is_used = costs < float("inf")
    last_cost = tl.max(tl.where(is_used, costs, 0.0), 0)
    max_cost = tl.where(tl.sum(is_used.to(tl.int32), 0) < TREE.horizon, float("inf"), last_cost)
    could_lead = is_used & (draft_rows < 0) & (costs < max_cost)
    order = order_of(tl.where(could_lead, costs, 0.0), depths, node)
    place = num_before(order, order, could_lead)
    mass = tl.sum(tl.where(could_lead & (place < TREE.width), tl.exp(-costs), 0.0), 0)
    size = tl.where((mass >= min_mass) & (num_missing <= TREE.most_behind), TREE.width, 0)
    return place, could_lead & (place < size)
