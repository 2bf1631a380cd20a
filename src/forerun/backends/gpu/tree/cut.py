"""From the tree to the rows that the target verifies.

Legend: N most nodes, W nodes of a batch, C children of each, R rows, E entries of tails.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.tree.admit import admit
from forerun.backends.gpu.tree.device_tree import COMMITTED, DeviceTree, has_bit
from forerun.backends.gpu.tree.fill_rows import write_facts, write_rows, write_successors


def cut(
    tree: DeviceTree, rows: RowTable, child_tokens_WC: Tensor | None = None, child_log_probs_WC: Tensor | None = None,
    *, spare_slot: int, overlaps: bool = False,
) -> None:  # fmt: skip
    """Take in the children of the last batch, if there was one, and fill the target's rows: row i is node i.

    The tree holds no more than `verify_width` nodes, so all are verified; the pass has always that many rows, the
    spare ones last.

    Args:
        rows: the target's table.
        child_tokens_WC, child_log_probs_WC: as for `grow`; None: nothing was expanded in this round.
        spare_slot: of the target's cache, never one of the text.
    """
    num_all = tree.draft_width * tree.num_children
    tree.check(rows, tree.verify_width)
    cut_kernel[(1,)](
        tree.tokens_N, tree.depths_N, tree.costs_N, tree.ancestors_N, tree.draft_rows_N, tree.batch_W, tree.facts,
        tree.tokens_N if child_tokens_WC is None else child_tokens_WC,
        tree.costs_N if child_log_probs_WC is None else child_log_probs_WC,
        rows.facts, rows.token_ids, rows.positions, rows.slots, rows.lengths, rows.tails, spare_slot,
        HAS_CHILDREN=child_tokens_WC is not None, HORIZON=tree.verify_width, CAPACITY=tree.capacity,
        NUM_CHILDREN=tree.num_children, NUM_ALL=num_all, BLOCK=triton.next_power_of_2(num_all),
        STRIDE=tree.tail_stride, OVERLAPS=overlaps, **launch_options(num_warps=tree.num_warps, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def cut_kernel(
    tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, batch_W, facts, child_tokens_WC, child_log_probs_WC,
    row_facts, token_ids_R, positions_R, slots_R, lengths_R, tails_E, spare_slot,
    HAS_CHILDREN: tl.constexpr, HORIZON: tl.constexpr, CAPACITY: tl.constexpr, NUM_CHILDREN: tl.constexpr,
    NUM_ALL: tl.constexpr, BLOCK: tl.constexpr, STRIDE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program."""
    await_inputs(OVERLAPS)
    if HAS_CHILDREN:
        admit(tokens_N, depths_N, costs_N, ancestors_N, draft_rows_N, batch_W, child_tokens_WC, child_log_probs_WC,
              HORIZON, CAPACITY, NUM_CHILDREN, NUM_ALL, BLOCK)  # fmt: skip
    node, committed = tl.arange(0, CAPACITY), tl.load(facts + COMMITTED)
    tokens, costs, depths = tl.load(tokens_N + node), tl.load(costs_N + node), tl.load(depths_N + node)
    ancestors, is_used = tl.load(ancestors_N + node), costs < float("inf")
    write_facts(row_facts, committed, committed, HORIZON, STRIDE)
    write_rows(token_ids_R, positions_R, slots_R, lengths_R, node, is_used, tokens, committed + depths,
               committed + node, committed + depths + 1)  # fmt: skip
    tail = tails_E + node[:, None] * STRIDE + depths[None, :]
    slots = tl.broadcast_to((committed + node)[None, :], (CAPACITY, CAPACITY))
    tl.store(tail, slots, mask=is_used[:, None] & has_bit(ancestors, node))
    is_spare, zeros = (costs == float("inf")) & (node < HORIZON), tl.zeros_like(node)
    write_successors(token_ids_R, positions_R, slots_R, lengths_R, tails_E, node, is_spare,
                     zeros, committed, zeros + spare_slot, STRIDE)  # fmt: skip
