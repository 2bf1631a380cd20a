"""Fills the rows that the target verifies from the tree.

Legend: N the largest number of nodes, W nodes of a batch, C children of each, R rows, E tree slots of all rows.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.sampling.join_tiles import TopK
from forerun.backends.gpu.tree.add_and_prune import add_and_prune
from forerun.backends.gpu.tree.device_tree import COMMITTED, DeviceTree, has_bit
from forerun.backends.gpu.tree.write_rows import write_header, write_rows, write_successors


def fill_verify_rows(
    tree: DeviceTree, rows: RowTable, children: TopK | None = None, *, spare_slot: int, overlaps: bool = False
) -> None:
    """Add the children of the last batch, if there was one, and fill the target's rows: row i is node i.

    The tree has at most `verify_width` nodes, so all are verified. The pass always has that many rows, with spare ones
    at the end.

    Args:
        rows: the target's table.
        children: as for `grow`; None: nothing was expanded in this round.
        spare_slot: a slot of the target's cache that the text never uses.
    """
    tree.check(rows, tree.verify_width)
    verify_rows_kernel[(1,)](
        tree.nodes, tree.batch_W, tree.header, children, rows.fields, spare_slot,
        TREE=tree.shape, OVERLAPS=overlaps, **launch_options(num_warps=tree.num_warps, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def verify_rows_kernel(nodes, batch_W, header, children, rows, spare_slot, TREE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Row i: token tokens[i], position committed + depths[i], slot committed + i; it sees the prefix and ancestors[i].

    `nodes` is a `TreeNodes` of [N], batch_W [W], `children` a `TopK` of [W, C] or None, `rows` the target's table.
    There is one program.
    """
    CAPACITY: tl.constexpr = TREE.capacity
    await_inputs(OVERLAPS)
    if children is not None:
        add_and_prune(nodes, batch_W, children, TREE)
    node = tl.arange(0, CAPACITY)
    committed = tl.load(header + COMMITTED)
    tokens = tl.load(nodes.tokens + node)
    costs = tl.load(nodes.costs + node)
    depths = tl.load(nodes.depths + node)
    ancestors = tl.load(nodes.ancestors + node)
    is_used = costs < float("inf")
    write_header(rows, committed, committed, TREE.horizon, TREE.stride)
    write_rows(rows, node, is_used, tokens, committed + depths, committed + node, committed + depths + 1)
    path = rows.tree_slots + node[:, None] * TREE.stride + depths[None, :]
    slots = tl.broadcast_to((committed + node)[None, :], (CAPACITY, CAPACITY))
    tl.store(path, slots, mask=is_used[:, None] & has_bit(ancestors, node))
    is_spare = (costs == float("inf")) & (node < TREE.horizon)
    zeros = tl.zeros_like(node)
    write_successors(rows, node, is_spare, zeros, committed, zeros + spare_slot, TREE.stride)
