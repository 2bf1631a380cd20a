"""A draft's tree of guesses and its growth policy, independent of any model."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from typing import Final

from forerun.drafting.foresight import Foresight
from forerun.drafting.policies import TreePolicy, num_candidates
from forerun.drafting.prompt_lookup import LookupChain
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth, CalibratedGuesses
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree

MOST_KINDS: Final = 4  # kinds of requests for which the draft's earlier predictions are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The outcome of committing tokens below a tree's root.

    Args:
        is_hit: the last token, which is the new root, was a node of the tree.
        path: the nodes between the old root and the new one that held committed tokens.
        places: retained nodes, old number to new.
    """

    is_hit: bool
    path: list[int]
    places: dict[int, int]


class GuessedTree:
    """A tree that grows best-first and includes looked-up text. It is replaced or re-rooted when text is committed.

    Args:
        horizon: nodes to grow, for several proposals if the subtree is kept; None: the rows of one proposal.
        keeps_subtree: keep the subtree below the new root.
        calibrates: use hit rates of similar earlier guesses as probabilities, not the draft's own probabilities.
        foresees: a pass also expands children that are guessed from the draft's earlier predictions (see `foresight`).
    """

    def __init__(
        self,
        policy: TreePolicy,
        *,
        verify_width: int,
        draft_width: int,
        horizon: int | None = None,
        keeps_subtree: bool = False,
        calibrates: bool = False,
        foresees: bool = False,
    ) -> None:
        self.policy = policy
        self.verify_width = verify_width
        self.draft_width = draft_width
        self._horizon = horizon or verify_width
        self._keeps_subtree = keeps_subtree
        self._lookup = LookupChain(num_tokens=min(2 * verify_width, self._horizon) - 1) if policy.looks_up else None
        self._guesses = CalibratedGuesses() if calibrates and not policy.is_chain else None
        self._foresees = foresees
        self._foresight: Foresight | None = None
        self._known: dict[Hashable, Foresight] = {}  # least recently used first

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._growth.tree

    def reset(self, prompt_ids: Sequence[int], noise: KeyedNoise | None = None, kind: Hashable = None) -> None:
        """Start a request; the last prompt token is the root.

        Args:
            noise: the target's noise, if guesses use it.
            kind: kind of the request; predictions made in requests of another kind are not used.
        """
        if self._foresees:
            self._foresight = self._known[kind] = self._known.pop(kind) if kind in self._known else Foresight()
            self._foresight.reset(prompt_ids, noise)
            if len(self._known) > MOST_KINDS:
                del self._known[next(iter(self._known))]
        if self._lookup is not None:
            self._lookup.read_prompt(prompt_ids)
        self._plant(prompt_ids[-1])
        self._hang_lookup()

    def next_batch(self, budget: RowBudget | None = None) -> list[int]:
        """The nodes to expand now, likeliest first; empty if no expansion pays.

        Args:
            budget: finds what pays; None, or with fixed widths: the policy's `min_mass` does.
        """
        if budget is not None and not budget.is_fixed:
            return self._growth.next_batch(lambda frontier: budget.num_nodes(frontier, self._growth.chances()))
        if self._foresight is not None:
            return self._growth.next_batch_ahead(partial(self._foresight.guess, self.tree))
        return self._growth.next_batch()

    def add_children(
        self,
        batch: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
        budget: RowBudget | None = None,
    ) -> None:
        """Add the draft's guesses below the nodes of a batch: the same number for each, likeliest first.

        Args:
            budget: learns how likely children are.
        """
        if self._foresight is not None:
            self._foresight.told(self.tree, batch, token_ids, log_probs)
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            self._add_children_of(node, tokens, values, budget)

    def add_link(
        self, node: int, token_ids: Sequence[int], log_probs: Sequence[float], confidence: float, *, is_greedy: bool
    ) -> None:
        """Add the next place of a chain: the draft's guesses below its last node, likeliest first.

        Args:
            confidence: the draft's probability of the first guess, unshaped.
        """
        number = num_candidates(confidence, is_greedy=is_greedy)
        goes_on = confidence >= self.policy.min_confidence
        self._growth.add_children(node, token_ids[:number], log_probs[:number], num_open=int(goes_on))

    def _add_children_of(
        self, node: int, token_ids: Sequence[int], log_probs: Sequence[float], budget: RowBudget | None
    ) -> None:
        if self._guesses is None:
            self._growth.add_children(node, token_ids, log_probs)
            return
        values = self._guesses.add(self._growth, node, token_ids, log_probs)
        if budget is not None:
            budget.measure_children(list(map(exp, values)))

    def advance(self, token_ids: Sequence[int]) -> Advance:
        """Commit tokens below the root; the last one becomes the root."""
        nodes = self.tree.descend(token_ids)
        is_hit = len(nodes) == len(token_ids)
        if self._guesses is not None:
            self._guesses.told(self.tree, [0, *nodes], token_ids)
        if self._lookup is not None:
            self._lookup.accept(token_ids)
        if self._foresight is not None:
            self._foresight.advance(token_ids)
        places: dict[int, int] = {}
        if is_hit and self._keeps_subtree:
            places = self._growth.reroot(nodes[-1])
        else:
            self._plant(token_ids[-1])
        if self._guesses is not None:
            self._guesses.reroot(places)
        self._hang_lookup()
        return Advance(is_hit=is_hit, path=nodes[:-1] if is_hit else nodes, places=places)

    def proposal(self) -> ProposedTree:
        """The tree, with the chances of its likeliest nodes."""
        return ProposedTree(tree=self.tree, known_chances=self._growth.chances())

    def _plant(self, root: int) -> None:
        """Start a new tree."""
        self._growth = BestFirstGrowth(
            root,
            horizon=self._horizon,
            draft_width=self.draft_width,
            min_mass=self.policy.min_mass,
            min_confidence=0.0 if self.policy.is_chain else self.policy.min_confidence,
        )

    def _hang_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.hang_into(self._growth)
