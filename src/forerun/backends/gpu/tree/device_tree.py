"""The draft tree of one request on the device: grown, pruned and walked by kernels, without the host.

A round is a fixed sequence of launches, so it can be captured in a CUDA graph:

    add_lookup_chain                  the text's own continuation as a first chain, if wanted
    grow, draft pass, topk            `depth` times; each `grow` but the first takes the top-k of the pass before
    verify_rows, target pass, sample  `verify_rows` takes the top-k of the last pass
    walk, move_slots (both caches)

The tree keeps the `verify_width` likeliest nodes found so far and drops all others at once. No node is likelier than
its parent, so a dropped node could not be expanded or verified later. Nodes are in the order in which they were found,
parents before children; node 0 is the root, the last committed token.

Legend: N the largest number of nodes (a power of two), W nodes of a batch, C children of each.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.device_rounds import RoundOutcome
from forerun.backends.gpu.row_table import RowTable

MOST_NODES: Final = 64  # A node's ancestors are the bits of one int64.
MOST_BATCH_CHILDREN: Final = 128  # Children of all nodes that one draft pass expands.
LEAST_NODES: Final = 16

# Places in `header`. committed: tokens in the target's cache, hence the root's place in the text. draft_committed:
# those in the draft's. num_draft_rows: this round's rows in the draft's cache.
HEADER_SIZE: Final = 3
COMMITTED, DRAFT_COMMITTED, NUM_DRAFT_ROWS = map(tl.constexpr, range(HEADER_SIZE))

# Places in an outcome's header.
OUTCOME_HEADER: Final = 4
NUM_TOKENS, NUM_VERIFIED, NUM_DRAFTED_ROWS, NUM_BEHIND = map(tl.constexpr, range(OUTCOME_HEADER))

MOVES_HEADER: Final = 2  # The number of moves, and the slot of the first.


class TreeNodes(NamedTuple):
    """A tree's nodes, [N] each; the tensors' addresses never change.

    Args:
        tokens, depths: int32; the root's depth is 0.
        costs: float32, -log of the chance that the text reaches a node; infinite where there is no node.
        ancestors: int64, bit i of node j is set if i is j or above it.
        draft_rows: int32, a node's row in the draft's cache behind the committed text; -1 until it is expanded.
    """

    tokens: Tensor
    depths: Tensor
    costs: Tensor
    ancestors: Tensor
    draft_rows: Tensor


class TreeShape(NamedTuple):
    """The compile-time parameters of a tree's kernels.

    Args:
        horizon: nodes that are kept (verify_width).
        capacity: N.
        width: W.
        num_children: C.
        child_block: the power of two that holds W * C.
        most_behind: tokens before the root that the draft's cache may lack; a round's first pass has a row for each.
        rereads: only the root's row is kept in the draft's cache; accepted nodes are read again in the next round.
        follows: the draft's cache gets the rows of accepted nodes from the verification, and lacks none.
        stride: tree slots of a row: a path of all nodes, and the tokens before the root.
    """

    horizon: int
    capacity: int
    width: int
    num_children: int
    child_block: int
    most_behind: int
    rereads: bool
    follows: bool
    stride: int


class DeviceTree:
    """The tree's tensors, whose addresses never change.

    Args:
        batch_W: the nodes that the draft's last pass expanded, then -1.
        header: committed, draft_committed, num_draft_rows; see above.
        outcome: the result of the last `walk`, to be copied to the host and read by `read_outcome`.
        target_moves, draft_moves: the moves that `move_slots` makes in each cache after `walk`: their number, the
            destination slot of the first, and the source slots in order.
    """

    def __init__(
        self, *, verify_width: int, draft_width: int, num_children: int, min_mass: float, device: str,
        rereads: bool = False, follows: bool = False,
    ) -> None:  # fmt: skip
        assert 1 <= verify_width <= MOST_NODES, f"verify_width {verify_width} must lie in 1 .. {MOST_NODES}"
        num_all = draft_width * num_children
        assert 1 <= num_all <= MOST_BATCH_CHILDREN, f"{draft_width} x {num_children} children are too many"
        self.verify_width = verify_width
        self.draft_width = draft_width
        self.min_mass = min_mass
        self.capacity = capacity = max(triton.next_power_of_2(verify_width), LEAST_NODES)
        child_block = triton.next_power_of_2(num_all)
        most_behind = max(1, verify_width - 1) if rereads else 1
        self.shape = TreeShape(
            verify_width, capacity, draft_width, num_children, child_block, most_behind, rereads, follows,
            stride=verify_width + most_behind,
        )  # fmt: skip
        self._state, self._host_state = (TreeState(capacity, draft_width, where) for where in (device, "cpu"))
        self.nodes = self._state.nodes
        self.batch_W = self._state.batch_W
        self.header = self._state.header
        numbers = {"dtype": torch.int32, "device": device}
        self.outcome = torch.zeros(OUTCOME_HEADER + 3 * capacity, **numbers)  # type: ignore[call-overload]
        self.target_moves = torch.zeros(MOVES_HEADER + capacity, **numbers)  # type: ignore[call-overload]
        self.draft_moves = torch.zeros(MOVES_HEADER + capacity, **numbers)  # type: ignore[call-overload]

    @property
    def num_warps(self) -> int:
        """Warps of a kernel that compares all nodes with each other, and with all children of a batch."""
        num_compared = self.capacity + self.shape.child_block
        return (
            int(triton.next_power_of_2(num_compared)) // 8
        )  # Keeps registers from spilling in all but the largest trees.

    def check(self, rows: RowTable, num_rows: int) -> None:
        """Refuse a table that is too small for this many of the tree's rows."""
        assert rows.max_rows >= num_rows, f"{rows.max_rows} rows where {num_rows} are needed"
        assert rows.max_tree_slots >= num_rows * self.shape.stride, f"{rows.max_tree_slots} tree slots are too few"

    def reset(self, *, root: int, committed: int, draft_committed: int) -> None:
        """Start with only `root`, for which neither cache has a row yet.

        Args:
            committed: tokens of the text in the target's cache, which are all those before the root.
            draft_committed: tokens of the text in the draft's cache; nothing is drafted if more than `most_behind` of
                those before the root are missing.
        """
        host = self._host_state
        host.nodes.ancestors[0] = 1
        host.nodes.costs[0] = 0.0
        host.nodes.tokens[0] = root
        host.header.copy_(torch.tensor([committed, draft_committed, 0], dtype=torch.int32))
        self._state.storage.copy_(host.storage)


class TreeState:
    """The state that a round passes to the next one, in one block of int32: an empty tree."""

    def __init__(self, capacity: int, draft_width: int, device: str) -> None:
        sizes = (2 * capacity, capacity, capacity, capacity, capacity, draft_width, HEADER_SIZE)
        self.storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        parts: tuple[Tensor, ...] = self.storage.split(sizes)
        ancestors = parts[0].view(torch.int64)
        costs = parts[1].view(torch.float32).fill_(torch.inf)
        tokens, depths, draft_rows, self.batch_W, self.header = parts[2:]
        self.nodes = TreeNodes(tokens, depths, costs, ancestors, draft_rows.fill_(-1))
        self.batch_W.fill_(-1)


def read_outcome(outcome: Tensor) -> RoundOutcome:
    """The outcome from a copy of `DeviceTree.outcome` on the host."""
    tokens_N, margins_N, bests_N = outcome[OUTCOME_HEADER:].chunk(3)
    num_tokens, num_verified, num_draft_rows, num_behind = outcome[:OUTCOME_HEADER].tolist()
    return RoundOutcome(
        token_ids=tokens_N[:num_tokens].tolist(),
        margins=margins_N[:num_tokens].view(torch.float32).tolist(),
        bests=bests_N[:num_tokens].view(torch.float32).tolist(),
        num_verified=num_verified,
        num_draft_rows=num_draft_rows,
        num_behind=num_behind,
    )


@triton.jit
def order_of(costs, depths, numbers):
    """An int64 that sorts nodes by cost, depth and number. Costs are not negative, so that they sort by their bits."""
    ties = (depths.to(tl.int64) << 16) | numbers.to(tl.int64)
    return (costs.to(tl.int32, bitcast=True).to(tl.int64) << 32) | ties


@triton.jit
def num_before(orders, among, counts):
    """For each of `orders`, the number of counted elements of `among` that come before it."""
    return tl.sum(((among[None, :] < orders[:, None]) & counts[None, :]).to(tl.int32), 1)


@triton.jit
def bits_of(numbers):
    """The bit of each number in a mask."""
    return tl.full(numbers.shape, 1, tl.int64) << numbers.to(tl.int64)


@triton.jit
def has_bit(masks, numbers):
    """[masks, numbers] whether each mask has each number's bit."""
    return ((masks[:, None] >> numbers.to(tl.int64)[None, :]) & 1) != 0
