"""The draft tree of one request on the device: grown, cut and walked by kernels, without the host.

A round is a fixed row of launches, so it can be captured in a CUDA graph:

    hang_lookup                       the text's own continuation as a first chain, if wanted
    grow, draft pass, rank            `depth` times; each `grow` but the first takes what the pass before ranked
    cut, target pass, choose          `cut` takes what the last pass ranked
    accept, move_slots (both caches)

The tree holds the `verify_width` likeliest nodes found so far and forgets every other at once: nothing below a node is
likelier than the node, so a forgotten one could neither be expanded nor verified again. Nodes stand in the order in
which they were found, parents before children; node 0 is the root, the last committed token.

Legend: N most nodes (a power of two), W nodes of a batch, H head of an outcome.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.row_table import RowTable

MOST_NODES: Final = 64  # a node's ancestors are the bits of one int64
MOST_OF_BATCH: Final = 128  # children of all the nodes that one draft pass expands
LEAST_NODES: Final = 16

# Places in `facts`. committed: tokens in the target's cache, hence the root's place in the text. draft_committed: those
# in the draft's. before_root: the token before the root. num_draft_rows: this round's rows in the draft's cache.
NUM_FACTS: Final = 4
COMMITTED, DRAFT_COMMITTED, BEFORE_ROOT, NUM_DRAFT_ROWS = map(tl.constexpr, range(NUM_FACTS))

# Places in an outcome's head.
OUTCOME_HEAD: Final = 4
NUM_TOKENS, NUM_VERIFIED, NUM_DRAFTED_ROWS, NUM_BEHIND = map(tl.constexpr, range(OUTCOME_HEAD))

MOVES_HEAD: Final = 2  # the number of moves, the slot of the first


class DeviceTree:
    """The tree's tensors; every one keeps its address.

    Args:
        tokens_N, depths_N: of nodes; the root's depth is 0.
        costs_N: float32, -log of the chance that the text reaches a node; infinite where there is no node.
        ancestors_N: int64, bit i of node j is set if i is j or above it.
        draft_rows_N: a node's row in the draft's cache behind the committed text; -1 until it is expanded.
        batch_W: the nodes that the draft's last pass expanded, then -1.
        facts: see above.
        outcome: what the last `accept` did, to be copied to the host and read by `read_outcome`.
        target_moves, draft_moves: what `move_slots` is to do in either cache after `accept`: the number of moves, the
            slot of the first, and the slots that move there in order.
    """

    def __init__(self, *, verify_width: int, draft_width: int, num_children: int, min_mass: float, device: str) -> None:
        assert 1 <= verify_width <= MOST_NODES, f"verify_width {verify_width} must lie in 1 .. {MOST_NODES}"
        assert 1 <= draft_width * num_children <= MOST_OF_BATCH, f"{draft_width} x {num_children} children are too many"
        self.verify_width, self.draft_width, self.num_children = verify_width, draft_width, num_children
        self.min_mass = min_mass
        self.capacity = capacity = max(triton.next_power_of_2(verify_width), LEAST_NODES)
        self._device_state, self._host_state = State(capacity, draft_width, device), State(capacity, draft_width, "cpu")
        state = self._device_state
        self.ancestors_N, self.costs_N, self.tokens_N = state.ancestors_N, state.costs_N, state.tokens_N
        self.depths_N, self.draft_rows_N, self.batch_W = state.depths_N, state.draft_rows_N, state.batch_W
        self.facts = state.facts
        numbers = {"dtype": torch.int32, "device": device}
        self.outcome = torch.zeros(OUTCOME_HEAD + 3 * capacity, **numbers)  # type: ignore[call-overload]
        self.target_moves = torch.zeros(MOVES_HEAD + capacity, **numbers)  # type: ignore[call-overload]
        self.draft_moves = torch.zeros(MOVES_HEAD + capacity, **numbers)  # type: ignore[call-overload]

    @property
    def tail_stride(self) -> int:
        """Entries of a row's tail: a path of all nodes, and the token before the root."""
        return self.verify_width + 1

    @property
    def num_warps(self) -> int:
        """Warps of a kernel that compares all nodes with each other, and with all children of a batch."""
        num_compared = self.capacity + triton.next_power_of_2(self.draft_width * self.num_children)
        return int(triton.next_power_of_2(num_compared)) // 8  # few enough registers, but for the largest trees

    def check(self, rows: RowTable, num_rows: int) -> None:
        """Refuse a table that is too small for so many of the tree's rows."""
        assert rows.max_rows >= num_rows, f"{rows.max_rows} rows where {num_rows} are needed"
        assert rows.max_tail_entries >= num_rows * self.tail_stride, f"{rows.max_tail_entries} entries are too few"

    def begin(self, *, root: int, committed: int, draft_committed: int, before_root: int) -> None:
        """Plant `root`, of which neither cache has a row yet.

        Args:
            committed: tokens of the text in the target's cache, all those before the root.
            draft_committed: of these in the draft's; nothing is drafted while more than one is missing there.
            before_root: the token that may be missing.
        """
        host = self._host_state
        host.ancestors_N[0], host.costs_N[0], host.tokens_N[0] = 1, 0.0, root
        host.facts.copy_(torch.tensor([committed, draft_committed, before_root, 0], dtype=torch.int32))
        self._device_state.storage.copy_(host.storage)


class State:
    """What a round passes on to the next, in one block of int32: an empty tree."""

    def __init__(self, capacity: int, draft_width: int, device: str) -> None:
        sizes = (2 * capacity, capacity, capacity, capacity, capacity, draft_width, NUM_FACTS)
        self.storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        parts: tuple[Tensor, ...] = self.storage.split(sizes)
        self.ancestors_N, self.costs_N = parts[0].view(torch.int64), parts[1].view(torch.float32)
        self.tokens_N, self.depths_N, self.draft_rows_N, self.batch_W, self.facts = parts[2:]
        self.costs_N.fill_(torch.inf)
        self.draft_rows_N.fill_(-1)
        self.batch_W.fill_(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one round gave.

    Args:
        token_ids: the accepted tokens, then the target's own.
        margins: for each of them, by how much it led the next one.
        bests: for each of them its total score; not finite where nothing could be chosen.
        num_verified: nodes in the target's pass.
        num_draft_rows: rows that the draft's passes gave this round, fillers not counted.
        num_behind: tokens before the new root that the draft's cache lacks; more than one are to be prefilled.
    """

    token_ids: list[int]
    margins: list[float]
    bests: list[float]
    num_verified: int
    num_draft_rows: int
    num_behind: int


def read_outcome(outcome: Tensor) -> Outcome:
    """The outcome from a copy of `DeviceTree.outcome` on the host."""
    head, (tokens_N, margins_N, bests_N) = outcome[:OUTCOME_HEAD].tolist(), outcome[OUTCOME_HEAD:].chunk(3)
    num_tokens, num_verified, num_draft_rows, num_behind = head
    return Outcome(
        token_ids=tokens_N[:num_tokens].tolist(),
        margins=margins_N[:num_tokens].view(torch.float32).tolist(),
        bests=bests_N[:num_tokens].view(torch.float32).tolist(),
        num_verified=num_verified,
        num_draft_rows=num_draft_rows,
        num_behind=num_behind,
    )


@triton.jit
def order_of(costs, depths, numbers):
    """An int64 by which nodes sort: cost, then depth, then number. Costs are not negative: their bits sort alike."""
    ties = (depths.to(tl.int64) << 16) | numbers.to(tl.int64)
    return (costs.to(tl.int32, bitcast=True).to(tl.int64) << 32) | ties


@triton.jit
def num_before(orders, among, counts):
    """For each of `orders` how many of `among` that count come before it."""
    return tl.sum(((among[None, :] < orders[:, None]) & counts[None, :]).to(tl.int32), 1)


@triton.jit
def bits_of(numbers):
    """The bit of each number in a mask."""
    return tl.full(numbers.shape, 1, tl.int64) << numbers.to(tl.int64)


@triton.jit
def has_bit(masks, numbers):
    """[masks, numbers] whether a mask has a number's bit."""
    return ((masks[:, None] >> numbers.to(tl.int64)[None, :]) & 1) != 0
