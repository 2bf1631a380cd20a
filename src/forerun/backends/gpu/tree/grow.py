"""One step of the tree's growth: take in the children of the last batch, choose the next one, fill the draft's rows.

Legend: N most nodes, W nodes of a batch, C children of each, R rows, E entries of tails.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.tree.admit import admit
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
from forerun.backends.gpu.tree.fill_rows import write_facts, write_rows, write_successors


def grow(
    tree: DeviceTree, rows: RowTable, child_tokens_WC: Tensor | None = None, child_log_probs_WC: Tensor | None = None,
    *, vocab_size: int, spare_slot: int, overlaps: bool = False,
) -> None:  # fmt: skip
    """Choose the batch of the draft's next pass and fill its rows.

    The first step of a round has no children to take in; its pass has draft_width + 1 rows: the token before the root
    if the draft's cache lacks it, then the batch, which begins with the root. Every later pass has draft_width rows,
    those of its batch. A row that nobody needs is a spare one; where growth has ended, all are.

    Args:
        rows: the draft's table.
        child_tokens_WC, child_log_probs_WC: int32 and float32, what was ranked for the last batch, in its order; of the
            first pass of a round these are the rows from 1 on.
        vocab_size: of the draft; it reads other tokens as 0.
        spare_slot: of the draft's cache, never one of the text.
    """
    is_first, num_children = child_tokens_WC is None, tree.num_children
    num_rows = tree.draft_width + is_first
    num_all = tree.draft_width * num_children
    tree.check(rows, num_rows)
    grow_kernel[(1,)](
        tree.tokens_N, tree.depths_N, tree.costs_N, tree.ancestors_N, tree.draft_rows_N, tree.batch_W, tree.facts,
        tree.tokens_N if child_tokens_WC is None else child_tokens_WC,
        tree.costs_N if child_log_probs_WC is None else child_log_probs_WC,
        rows.facts, rows.token_ids, rows.positions, rows.slots, rows.lengths, rows.tails,
        tree.min_mass, vocab_size, spare_slot,
        IS_FIRST=is_first, HORIZON=tree.verify_width, CAPACITY=tree.capacity, WIDTH=tree.draft_width,
        NUM_CHILDREN=num_children, NUM_ALL=num_all, BLOCK=triton.next_power_of_2(num_all),
        ROW_BLOCK=triton.next_power_of_2(num_rows), STRIDE=tree.tail_stride, OVERLAPS=overlaps,
        **launch_options(num_warps=tree.num_warps, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def grow_kernel(
    tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, batch_W, facts, child_tokens_WC, child_log_probs_WC,
    row_facts, token_ids_R, positions_R, slots_R, lengths_R, tails_E, min_mass, vocab_size, spare_slot,
    IS_FIRST: tl.constexpr, HORIZON: tl.constexpr, CAPACITY: tl.constexpr, WIDTH: tl.constexpr,
    NUM_CHILDREN: tl.constexpr, NUM_ALL: tl.constexpr, BLOCK: tl.constexpr, ROW_BLOCK: tl.constexpr,
    STRIDE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program. The batch is the first of the open nodes that could still lead into the horizon."""
    await_inputs(OVERLAPS)
    if not IS_FIRST:
        admit(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, batch_W, child_tokens_WC, child_log_probs_WC,
              HORIZON, CAPACITY, NUM_CHILDREN, NUM_ALL, BLOCK)  # fmt: skip
    node, row = tl.arange(0, CAPACITY), tl.arange(0, ROW_BLOCK)
    tokens, costs, depths = tl.load(tokens_N + node), tl.load(costs_N + node), tl.load(depths_N + node)
    ancestors, draft_rows = tl.load(ancestors_N + node), tl.load(draft_rows_N + node)
    committed, draft_committed = tl.load(facts + COMMITTED), tl.load(facts + DRAFT_COMMITTED)
    num_missing, before_root = committed - draft_committed, tl.load(facts + BEFORE_ROOT)

    place, is_chosen = choose_batch(costs, depths, draft_rows, node, min_mass, num_missing, HORIZON, WIDTH)
    num_chosen = tl.sum(is_chosen.to(tl.int32), 0)
    first_draft_row = num_missing if IS_FIRST else tl.load(facts + NUM_DRAFT_ROWS)
    draft_rows = tl.where(is_chosen, first_draft_row + place, draft_rows)
    tl.debug_barrier()  # all have read before one writes
    tl.store(draft_rows_N + node, draft_rows, mask=is_chosen)
    tl.store(batch_W + place, node, mask=is_chosen)
    tl.store(batch_W + row, -1, mask=(row >= num_chosen) & (row < WIDTH))
    num_draft_rows = tl.where(num_chosen > 0, first_draft_row + num_chosen, 0 if IS_FIRST else first_draft_row)
    tl.store(facts + NUM_DRAFT_ROWS, num_draft_rows)

    first_row: tl.constexpr = 1 if IS_FIRST else 0
    first_slot = draft_committed + (0 if IS_FIRST else first_draft_row)
    write_facts(row_facts, draft_committed, first_slot, WIDTH + first_row, STRIDE)
    batch_row, known = first_row + place, tl.where(tokens < vocab_size, tokens, 0)
    write_rows(token_ids_R, positions_R, slots_R, lengths_R, batch_row, is_chosen, known, committed + depths,
               draft_committed + draft_rows, committed + depths + 1)  # fmt: skip
    tail = tails_E + batch_row[:, None] * STRIDE + (num_missing + depths)[None, :]
    slots = tl.broadcast_to((draft_committed + draft_rows)[None, :], (CAPACITY, CAPACITY))
    tl.store(tail, slots, mask=is_chosen[:, None] & has_bit(ancestors, node))
    num_above = tl.zeros_like(node) + num_missing
    tl.store(tails_E + batch_row * STRIDE, tl.zeros_like(node) + draft_committed, mask=is_chosen & (num_above == 1))

    catches_up = row < tl.where(num_missing == 1, first_row, 0)
    is_other = (row < first_row) | (row >= first_row + num_chosen)
    token = tl.where(catches_up, tl.where(before_root < vocab_size, before_root, 0), 0)
    slot = tl.where(catches_up, draft_committed, spare_slot)
    write_successors(token_ids_R, positions_R, slots_R, lengths_R, tails_E, row, is_other & (row < WIDTH + first_row),
                     token, draft_committed, slot, STRIDE)  # fmt: skip


@triton.jit
def choose_batch(
    costs, depths, draft_rows, node, min_mass, num_missing, HORIZON: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Each node's place in the next batch, and whether it is in it.

    Nothing is expanded if the chances of the whole batch add up to less than min_mass, or while the draft's cache lacks
    more than the one token that can ride along.
    """
    is_used = costs < float("inf")
    last_cost = tl.max(tl.where(is_used, costs, 0.0), 0)
    max_cost = tl.where(tl.sum(is_used.to(tl.int32), 0) < HORIZON, float("inf"), last_cost)
    could_lead = is_used & (draft_rows < 0) & (costs < max_cost)
    order = order_of(tl.where(could_lead, costs, 0.0), depths, node)
    place = num_before(order, order, could_lead)
    mass = tl.sum(tl.where(could_lead & (place < WIDTH), tl.exp(-costs), 0.0), 0)
    size = tl.where((mass >= min_mass) & (num_missing <= 1), WIDTH, 0)
    return place, could_lead & (place < size)
