"""A draft's tree of guesses without the draft: what to expand, what a guess is worth, what to verify."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.tree_policy import TreePolicy
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.guesses import CalibratedGuesses
from forerun.speculation.tree import TokenTree
from forerun.speculation.widths import WidthRule, rows_to_verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What became of a tree when tokens were committed below its root.

    Args:
        is_hit: the last of them, which is the new root, was a node of the tree.
        path: the nodes between the old root and the new one that held committed tokens.
        places: old nodes that live on, with their new numbers.
    """

    is_hit: bool
    path: list[int]
    places: dict[int, int]


class GuessedTree:
    """Grows best-first, with looked-up text in it, and is planted anew or re-rooted when text is committed.

    Args:
        horizon: nodes that growing looks for; the rows of one proposal, or of several where the subtree is kept.
        keeps_subtree: what lies below the new root lives on.
        calibrates: a guess is worth what guesses of its kind were worth so far, not what the draft says.
    """

    def __init__(
        self, policy: TreePolicy, *, verify_width: int, draft_width: int, horizon: int, keeps_subtree: bool = False,
        calibrates: bool = False,
    ) -> None:  # fmt: skip
        self.rule: WidthRule | None = None  # None: fixed widths
        self.policy, self.verify_width, self.draft_width = policy, verify_width, draft_width
        self._horizon, self._keeps_subtree = horizon, keeps_subtree
        self._lookup = LookupChain(num_tokens=min(2 * verify_width, horizon) - 1) if policy.looks_up else None
        self._guesses = CalibratedGuesses() if calibrates else None

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._growth.tree

    @property
    def frontier_chance(self) -> float:
        """The chance that the text reaches what the next expansion would expand."""
        return self._growth.frontier_chance()

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a request; the last prompt token is the root."""
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)
        self._plant(prompt_ids[-1])
        self._hang_lookup()

    def next_batch(self) -> list[int]:
        """The nodes to expand now, likeliest first; empty where that is not worth it."""
        return self._growth.next_batch(self._num_worth if self.rule else None)

    def add_children(self, node: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add what the draft guesses behind an expanded node, likeliest first."""
        if self._guesses is None:
            self._growth.add_children(node, token_ids, log_probs)
            return
        chances = self._guesses.add(self._growth, node, token_ids, log_probs)
        if self.rule is not None:
            self.rule.measure_children(chances)

    def advance(self, token_ids: Sequence[int]) -> Advance:
        """Commit tokens below the root; the last of them becomes the root."""
        nodes = self.tree.descend(token_ids)
        is_hit = len(nodes) == len(token_ids)
        if self._guesses is not None:
            self._guesses.learn(self.tree, [0, *nodes], token_ids)
        if self._lookup is not None:
            self._lookup.accept(token_ids)
        places: dict[int, int] = {}
        if is_hit and self._keeps_subtree:
            places = self._growth.reroot(nodes[-1])
        else:
            self._plant(token_ids[-1])
        if self._guesses is not None:
            self._guesses.reroot(places)
        self._hang_lookup()
        return Advance(is_hit=is_hit, path=nodes[:-1] if is_hit else nodes, places=places)

    def proposal(self) -> TokenTree:
        """The best of the tree, as many rows as are worth their time."""
        return rows_to_verify(self.tree, self.verify_width, self.rule, self._growth.chances)

    def _num_worth(self, frontier: Sequence[float]) -> int:
        assert self.rule is not None, "asked only where there is a rule"
        return self.rule.num_nodes(frontier, self._growth.chances(), self.verify_width)

    def _plant(self, root: int) -> None:
        """A fresh tree."""
        self._growth = BestFirstGrowth(
            root,
            horizon=self._horizon,
            draft_width=self.draft_width,
            min_mass=self.policy.min_mass,
            min_confidence=self.policy.min_confidence,
        )

    def _hang_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.hang_into(self._growth)
