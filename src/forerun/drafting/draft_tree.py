"""A draft's tree of guesses: the policy, which is independent of a model, and the tree that a draft model grows."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.foresight import Foresight
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper
from forerun.speculation.growth import BestFirstGrowth, CalibratedGuesses
from forerun.speculation.payoff import WidthRule, rows_to_verify
from forerun.speculation.tree import TokenTree

MOST_KINDS: Final = 4  # of requests, of which it is kept what the draft said


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The outcome of committing tokens below a tree's root.

    Args:
        is_hit: the last of them, which is the new root, was a node of the tree.
        path: the nodes between the old root and the new one that held committed tokens.
        places: retained nodes, old number to new.
    """

    is_hit: bool
    path: list[int]
    places: dict[int, int]


class GuessedTree:
    """Grows best-first, with looked-up text in it; replaced or re-rooted when text is committed.

    Args:
        horizon: nodes to grow; the rows of one proposal, or of several where the subtree is kept.
        keeps_subtree: the subtree below the new root is retained.
        calibrates: probabilities are hit rates of similar guesses so far, not the draft's own.
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
        self._foresees = policy.foresees and draft_width > 1
        self._foresight: Foresight | None = None
        self._known: dict[Hashable, Foresight] = {}  # the one used least recently first

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._growth.tree

    @property
    def frontier_chance(self) -> float:
        """The chance that the text reaches what the next expansion would expand."""
        return self._growth.frontier_chance()

    def begin(self, prompt_ids: Sequence[int], noise: KeyedNoise | None = None, kind: Hashable = None) -> None:
        """Start a request; the last prompt token is the root.

        Args:
            noise: the target's, if guesses know it.
            kind: of the request; what the draft says in one of another kind is not looked at.
        """
        if self._foresees:
            self._foresight = self._known[kind] = self._known.pop(kind) if kind in self._known else Foresight()
            self._foresight.begin(prompt_ids, noise)
            if len(self._known) > MOST_KINDS:
                del self._known[next(iter(self._known))]
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)
        self._plant(prompt_ids[-1])
        self._hang_lookup()

    def next_batch(self) -> list[int]:
        """The nodes to expand now, likeliest first; empty if no expansion pays."""
        if self._foresight is not None and self.rule is None:
            return self._growth.next_batch_ahead(partial(self._foresight.guess, self.tree))
        return self._growth.next_batch(self._num_worth if self.rule else None)

    def add_children(
        self, batch: Sequence[int], token_ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Add the draft's guesses below the nodes of a batch, likeliest first, as many of each."""
        if self._foresight is not None:
            self._foresight.learn(self.tree, batch, token_ids, log_probs)
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            self._add_children_of(node, tokens, values)

    def _add_children_of(self, node: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
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

    def proposal(self) -> TokenTree:
        """The likeliest nodes of the tree, as many as pay."""
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


class DraftTree:
    """Grows a tree of guesses by one pass of the draft at a time.

    Args:
        guessed: the tree and its policy.
        rows: the draft's cache rows.
        target_vocab_size: guesses are tokens below it.
        vocabulary: what the draft's ids stand for; None: for themselves.
    """

    def __init__(
        self, guessed: GuessedTree, rows: DraftRows, *, target_vocab_size: int, vocabulary: VocabularyMap | None = None
    ) -> None:
        self.skipped: SkipSet = NOTHING  # sublayers that draft passes skip; may change only between trees
        self._guessed, self._rows, self._runner = guessed, rows, rows.runner
        num_draft = self._runner.spec.vocab_size
        self._vocabulary = vocabulary or VocabularyMap.of_equal_ids(num_target=target_vocab_size, num_draft=num_draft)
        ids = self._vocabulary.column_ids
        self._column_ids = None if ids is None else ids.to(self._runner.device)

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._guessed.tree

    @property
    def token_ids(self) -> Sequence[int]:
        """The committed text up to the tree's root, the root last, as the draft reads it."""
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        """Length of the committed text, with the tokens noted but not yet applied to the tree."""
        return len(self._token_ids) + len(self._pending)

    @property
    def first_guess(self) -> int | None:
        """The draft's likeliest token after the root; None before the root was expanded."""
        return self._first_guess

    @property
    def is_rooted(self) -> bool:
        """True once the root has been expanded: the draft has predicted the next token."""
        return self._rows.is_rooted

    @property
    def frontier_chance(self) -> float:
        """The chance that the text reaches what the next expansion would expand."""
        return self._guessed.frontier_chance

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        """Start a request; the last prompt token is the root. `noise` is the target's, None when greedy."""
        self._pending: list[int] = []
        self._token_ids = self._vocabulary.read(prompt_ids)
        self._first_guess: int | None = None
        self._shaper = self._shaper_of(params, prompt_ids)
        self._noise = noise if self._guessed.policy.knows_noise else None
        self._rows.begin(self._token_ids, owner)
        self._guessed.begin(prompt_ids, self._noise, (owner, params.temperature))

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the draft cannot propose."""
        return self._vocabulary.num_unknown(token_ids)

    def prefill(self) -> bool:
        """One wide pass towards the committed text, if the cache is far behind it; False when it is not."""
        return self._rows.prefill(self._token_ids)

    def expand(self) -> bool:
        """One draft pass over the likeliest unexpanded nodes; False if none pays or there is no room."""
        batch = self._guessed.next_batch() if self._rows.has_room(self._guessed.draft_width) else []
        if not batch:
            return False
        began, tree, rule = perf_counter(), self.tree, self._guessed.rule
        token_ids = self._vocabulary.read([tree.token_ids[node] for node in batch])
        self._add_children(batch, self._rows.expand(tree, batch, token_ids, self._token_ids, self.skipped))
        if rule is not None:
            rule.measure_expansion(len(batch), perf_counter() - began)
        return True

    def guess(self, logits: Tensor, places: Sequence[int]) -> list[int]:
        """The draft's guess for the text at these places, from logits [T, V] of rows before them."""
        return [tokens[0] for tokens in self._rank(logits, places, None, 1)[0]]

    def note(self, token_ids: Sequence[int]) -> None:
        """Note committed tokens; `tell` applies them to the tree, later if drafting rests."""
        self._pending += token_ids

    def tell(self) -> bool:
        """Apply all noted tokens to the tree; True if the last of them was a node of it."""
        if not self._pending:
            return False
        token_ids, self._pending = self._pending, []
        return self.advance(token_ids)

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Commit tokens below the root; the last of them becomes the root.

        Returns:
            True on a hit: the new root was a node of the tree.
        """
        self._token_ids.extend(self._vocabulary.read(token_ids))
        self._shaper.commit(self._vocabulary.columns(token_ids))
        done = self._guessed.advance(token_ids)
        self._rows.follow(self.tree, done.path, done.places, self._token_ids)
        if not done.places:
            self._first_guess = None
        return done.is_hit

    def forget(self) -> None:
        """Drop the draft's texts."""
        self._rows.forget()

    def _shaper_of(self, params: SamplingParams, prompt_ids: Sequence[int]) -> LogitShaper:
        """The request's parameters for the columns of the draft's scores.

        Biases and penalties are of tokens: what the draft lacks touches no column, though it is read as one of them.
        """
        columns = self._vocabulary.columns
        bias = {column: value for token, value in params.logit_bias.items() for column in columns([token])}
        return LogitShaper(
            replace(params, logit_bias=bias),
            self._vocabulary.num_columns,
            columns(prompt_ids),
            device=self._runner.device,
        )

    def _add_children(self, batch: list[int], logits: Tensor) -> None:
        """Guess the target's choice after each node of `batch`."""
        tree, next_position = self.tree, len(self._token_ids)
        columns = self._vocabulary.columns
        paths = [columns(tree.path_tokens(node)) for node in batch] if self._shaper.needs_paths else None
        places = [next_position + tree.depths[node] for node in batch]
        token_ids, log_probs = self._rank(logits, places, paths, self._guessed.policy.num_children)
        if batch[0] == 0:
            self._first_guess = token_ids[0][0]
        self._guessed.add_children(batch, token_ids, log_probs)

    def _rank(
        self, logits: Tensor, places: Sequence[int], paths: list[list[int]] | None, num_children: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The likeliest guesses of the target's choices at these places of the text, and their log-probabilities."""
        num_columns = self._vocabulary.num_columns
        scores = self._shaper.shape(logits if logits.shape[1] == num_columns else logits[:, :num_columns], paths)
        noise = None if self._noise is None else self._noise.at(places)
        return self._runner.backend.topk(
            scores, noise, num_children, temperature=self._shaper.temperature_left, column_ids=self._column_ids
        )
