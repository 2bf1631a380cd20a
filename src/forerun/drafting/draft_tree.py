"""A draft model's tree of guesses, with a row of its cache for every expanded node."""

from collections.abc import Sequence
from time import perf_counter

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.inputs import ForwardInput
from forerun.model.runner import PREFILL_ROWS, shared_length
from forerun.model.shared_cache import DraftRunner
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper
from forerun.speculation.ancestry import AncestryRows
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.guesses import CalibratedGuesses
from forerun.speculation.tree import TokenTree
from forerun.speculation.widths import WidthRule

MAX_CATCH_UP = 16  # committed tokens that go with the root's expansion; more are prefilled first


class DraftTree:
    """Grows by one forward of the draft model at a time, and is re-rooted when text is committed.

    The draft's cache holds the committed text up to some token; behind it lies one row for each token committed since,
    the root last, and one for each expanded node. When tokens are committed, the rows of accepted nodes become text,
    and those below the new root stay where `keeps_subtree` is set; no forward is needed for either.

    Invariants: a node has a row exactly if it was expanded; an expanded node's parent was expanded; rows stand in the
    order of their nodes. Without lookup at most two tokens lack a row once the root has been expanded in between, an
    accepted leaf that was never expanded and the new root.
    Source: SwiftSpec, arXiv 2506.11309, section 3 ("evolving tree cache").
    """

    def __init__(
        self, runner: DraftRunner, policy: TreePolicy, *, verify_width: int, draft_width: int, target_vocab_size: int,
        horizon: int, max_rows: int, keeps_subtree: bool, calibrates: bool = False,
    ) -> None:  # fmt: skip
        self.rule: WidthRule | None = None  # None: fixed widths
        self.skipped: SkipSet = NOTHING  # sublayers that draft passes leave out; to be changed between trees alone
        self._runner, self._policy, self._verify_width, self._draft_width = runner, policy, verify_width, draft_width
        self._horizon, self._max_rows, self._keeps_subtree = horizon, max_rows, keeps_subtree
        self._vocab_size = min(target_vocab_size, runner.spec.vocab_size)
        self._is_known_whole = runner.spec.vocab_size == self._vocab_size  # the target knows all of the draft's tokens
        self._lookup = LookupChain(num_tokens=min(2 * verify_width, horizon) - 1) if policy.looks_up else None
        self._guesses = CalibratedGuesses() if calibrates else None
        self._rows: dict[int, int] = {}  # expanded node to its row in the draft cache
        self._sees = AncestryRows()  # of all rows there

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._growth.tree

    @property
    def token_ids(self) -> Sequence[int]:
        """The committed text that the tree knows, the root last."""
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole committed text, those included of which the tree is still to be told."""
        return len(self._token_ids) + len(self._pending)

    @property
    def first_guess(self) -> int | None:
        """What the draft thinks likeliest behind the root; None before the root was expanded."""
        return self._first_guess

    def guess(self, logits: Tensor, places: Sequence[int]) -> list[int]:
        """The draft's guess for the text at these places, from logits [T, V] of rows before them."""
        return [tokens[0] for tokens in self._rank(logits, places, None, 1)[0]]

    @property
    def is_rooted(self) -> bool:
        """True once the root has been expanded: the draft has had its say about the next token."""
        return 0 in self._rows

    @property
    def frontier_chance(self) -> float:
        """The chance that the text reaches what the next expansion would expand."""
        return self._growth.frontier_chance()

    def chances(self) -> list[float]:
        """The chances of the tree's likeliest nodes that their tokens are accepted, likeliest first."""
        return self._growth.chances()

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request; the last prompt token is the root. `noise` is the target's own, None when greedy."""
        self._pending: list[int] = []
        self._token_ids = self._known(prompt_ids)
        self._shaper = LogitShaper(params, self._vocab_size, self._token_ids, device=self._runner.device)
        self._noise = noise if self._policy.knows_noise else None
        self._runner.sync(self._token_ids[: shared_length(self._runner.cached_ids, self._token_ids[:-1])])
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)
        self._plant(prompt_ids[-1])
        self._hang_lookup()

    def prefill(self) -> bool:
        """One wide forward towards the committed text, if the cache is far behind it; False when it is not."""
        num_cached, num_needed = len(self._runner.cached_ids), len(self._token_ids) - 1
        if num_needed - num_cached < MAX_CATCH_UP:
            return False
        assert not self.is_rooted, "a tree grows on committed text"
        self._runner.sync(self._token_ids[: min(num_cached + PREFILL_ROWS, num_needed)])
        return True

    def expand(self) -> bool:
        """One draft forward over the likeliest unexpanded nodes; False when nothing is worth it or room is out."""
        num_new_rows = self._draft_width + (0 if self.is_rooted else MAX_CATCH_UP)
        if self._runner.cache.num_tree + num_new_rows > self._max_rows:
            return False
        batch = self._growth.next_batch(self._num_worth if self.rule else None)
        if not batch:
            return False
        began = perf_counter()
        self._add_children(batch, self._forward(batch))
        if self.rule is not None:
            self.rule.measure_expansion(len(batch), perf_counter() - began)
        return True

    def note(self, token_ids: Sequence[int]) -> None:
        """Tokens were committed, of which the tree is told by `tell`: where drafting rests, that may wait."""
        self._pending += token_ids

    def tell(self) -> bool:
        """Tell the tree of all tokens noted; True if the last of them was a node of it."""
        if not self._pending:
            return False
        token_ids, self._pending = self._pending, []
        return self.advance(token_ids)

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Commit tokens below the root; the last of them becomes the root.

        Returns:
            True on a hit: the new root was a node of the tree.
        """
        nodes = self.tree.descend(token_ids)
        is_hit = len(nodes) == len(token_ids)
        stays = is_hit and self._keeps_subtree
        if self._guesses is not None:
            self._guesses.learn(self.tree, [0, *nodes], token_ids)
        self._token_ids.extend(self._known(token_ids))
        self._shaper.commit(self._token_ids[-len(token_ids) :])
        if self._lookup is not None:
            self._lookup.accept(token_ids)
        path = nodes[:-1] if is_hit else nodes
        if stays:
            self._reroot(path, nodes[-1])
        else:
            self._keep_rows(path, [])
            self._plant(token_ids[-1])
        self._hang_lookup()
        return is_hit

    def close(self) -> None:
        """Empty the cache."""
        self._runner.forget()

    def _num_worth(self, frontier: Sequence[float]) -> int:
        assert self.rule is not None, "asked only where there is a rule"
        return self.rule.num_nodes(frontier, self._growth.chances(), self._verify_width)

    def _plant(self, root: int) -> None:
        """A fresh tree."""
        policy = self._policy
        self._growth = BestFirstGrowth(
            root, horizon=self._horizon, draft_width=self._draft_width, min_mass=policy.min_mass,
            min_confidence=policy.min_confidence,
        )  # fmt: skip
        self._rows, self._sees = {}, AncestryRows()
        self._first_guess: int | None = None
        if self._guesses is not None:
            self._guesses.reroot({})

    def _reroot(self, path: list[int], root: int) -> None:
        """The subtree of `root`, with the rows it has; the node lies below `path`."""
        places = self._growth.reroot(root)
        if self._guesses is not None:
            self._guesses.reroot(places)
        kept = [node for node in sorted(places) if node in self._rows]
        self._keep_rows(path, kept)
        self._rows, self._sees = {}, AncestryRows()
        for node in map(places.__getitem__, kept):
            self._rows[node] = self._sees.add(self._rows.get(self.tree.parents[node], -1))

    def _hang_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.hang_into(self._growth)

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        """The ids as the draft can read them: one that only the target has becomes id 0, at the price of a guess."""
        return [token_id if token_id < self._vocab_size else 0 for token_id in token_ids]

    def _keep_rows(self, path: list[int], kept: list[int]) -> None:
        """Commit the rows of the root and of `path`; those of the nodes `kept` become the first rows of the tree."""
        if not self.is_rooted:
            return
        rows, runner = self._rows, self._runner
        committed = [*range(rows[0] + 1), *(rows[node] for node in path if node in rows)]
        first = len(runner.cached_ids)
        runner.keep([*committed, *(rows[node] for node in kept)], self._token_ids[first : first + len(committed)])

    def _forward(self, batch: list[int]) -> Tensor:
        """Run the nodes of `batch`, before the root what it follows; return the nodes' logits [len(batch), V]."""
        runner, cache, tree = self._runner, self._runner.cache, self.tree
        catch_up = [] if self.is_rooted else self._token_ids[len(runner.cached_ids) : -1]
        first_row, root_position = cache.num_tree, len(self._token_ids) - 1
        positions = [root_position + tree.depths[node] for node in batch]
        self._place(batch, len(catch_up))
        return runner.forward(
            ForwardInput(
                token_ids=[*catch_up, *self._known([tree.token_ids[node] for node in batch])],
                positions=[*range(root_position - len(catch_up), root_position), *positions],
                first_slot=cache.reserve(len(catch_up) + len(batch)),
                prefix_len=cache.committed_len,
                ancestry=self._sees.matrix(first_row) if cache.num_tree > 1 else None,
                num_logit_rows=len(batch),
                skipped=self.skipped,
            )
        ).logits

    def _place(self, batch: list[int], num_catch_up: int) -> None:
        """Give every node of `batch` a row, which sees those of its ancestors; before the root's what it follows."""
        rows, sees, parents = self._rows, self._sees, self.tree.parents
        for row in range(num_catch_up):
            sees.add(row - 1)
        for node in batch:
            rows[node] = sees.add(rows[parents[node]] if node else num_catch_up - 1)

    def _add_children(self, batch: list[int], logits: Tensor) -> None:
        """Guess what the target will choose after each node of `batch`."""
        tree, next_position = self.tree, len(self._token_ids)
        paths = [self._known(tree.path_tokens(node)) for node in batch] if self._shaper.needs_paths else None
        places = [next_position + tree.depths[node] for node in batch]
        token_ids, log_probs = self._rank(logits, places, paths, self._policy.num_children)
        if batch[0] == 0:
            self._first_guess = token_ids[0][0]
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            if self._guesses is None:
                self._growth.add_children(node, tokens, values)
                continue
            chances = self._guesses.add(self._growth, node, tokens, values)
            if self.rule is not None:
                self.rule.measure_children(chances)

    def _rank(
        self, logits: Tensor, places: Sequence[int], paths: list[list[int]] | None, num_children: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The likeliest guesses of the target's choices at these places of the text, and their log-probabilities."""
        scores = self._shaper.shape(logits if self._is_known_whole else logits[:, : self._vocab_size], paths)
        noise = None if self._noise is None else self._noise.at(places)
        return self._runner.backend.topk(scores, noise, num_children, temperature=self._shaper.temperature_left)
