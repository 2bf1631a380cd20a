"""A draft tree whose guesses come out of a record in place of a model."""

from collections.abc import Callable, Sequence

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.trace import AnswerTrace
from forerun.drafting.draft_rows import MAX_CATCH_UP
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.runner import PREFILL_ROWS
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.guesses import CalibratedGuesses
from forerun.speculation.tree import TokenTree
from forerun.speculation.widths import WidthRule, chances_of

Guesses = tuple[Sequence[int], Sequence[float]]


class TraceGrower:
    """Grows and re-roots as `DraftTree` does, with the same growth, lookup and calibration, but no model and no cache.

    A node on the path that the text took gets the guesses recorded there. A node off it never comes true whatever its
    children are, so it gets those of another place of the answer, always the same one for the same node: what matters
    there is only how sure the draft is, and thus how many rows such branches take from the true one.

    Args:
        spend: lets the time of a draft pass over so many rows go by, and returns its seconds.
    """

    def __init__(
        self, config: DraftModel, policy: TreePolicy, *, horizon: int, max_rows: int, keeps_subtree: bool,
        calibrates: bool, spend: Callable[[int], float],
    ) -> None:  # fmt: skip
        self.rule: WidthRule | None = None  # None: fixed widths
        self._config, self._policy, self._horizon, self._max_rows = config, policy, horizon, max_rows
        self._keeps_subtree, self._spend = keeps_subtree, spend
        self._lookup = LookupChain(num_tokens=min(2 * config.verify_width, horizon) - 1) if policy.looks_up else None
        self._calibrated = CalibratedGuesses() if calibrates else None
        self._expanded: set[int] = set()  # the nodes that would have a row in the draft's cache
        self._num_caught_up = 0  # rows there of committed tokens before the root
        self._next_trace: AnswerTrace | None = None
        self.num_expansions = 0

    @property
    def tree(self) -> TokenTree:
        return self._growth.tree

    @property
    def is_rooted(self) -> bool:
        return 0 in self._expanded

    @property
    def frontier_chance(self) -> float:
        return self._growth.frontier_chance()

    def expect(self, trace: AnswerTrace) -> None:
        """The answer that the next request gets."""
        self._next_trace = trace

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start the request of the trace that is expected."""
        assert self._next_trace is not None, "a request without a trace"
        self._trace = self._next_trace
        assert tuple(prompt_ids) == self._trace.prompt_ids, "the trace of another request"
        self._num_committed = 0  # tokens of the answer
        self._num_cached = 0  # tokens of the text in the draft's cache
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)
        self._plant(prompt_ids[-1])

    def prefill(self) -> bool:
        """One wide pass towards the committed text, if the cache is far behind it."""
        num_lacking = self._text_len - 1 - self._num_cached
        if num_lacking < MAX_CATCH_UP:
            return False
        num_rows = min(PREFILL_ROWS, num_lacking)
        self._spend(num_rows)
        self._num_cached += num_rows
        return True

    def expand(self) -> bool:
        """One draft pass over the likeliest unexpanded nodes; False when nothing is worth it or room is out."""
        num_new_rows = self._config.draft_width + (0 if self.is_rooted else MAX_CATCH_UP)
        if self._num_caught_up + len(self._expanded) + num_new_rows > self._max_rows:
            return False
        batch = self._growth.next_batch(self._num_worth if self.rule else None)
        if not batch:
            return False
        num_catch_up = 0 if self.is_rooted else self._text_len - 1 - self._num_cached
        spent_s = self._spend(num_catch_up + len(batch))
        self.num_expansions += 1
        self._num_caught_up += num_catch_up
        self._expanded.update(batch)
        for node in batch:
            self._add_children(node, self._guesses(node))
        if self.rule is not None:
            self.rule.measure_expansion(len(batch), spent_s)
        return True

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Commit tokens below the root; True when the last of them was a node of the tree."""
        nodes = self.tree.descend(token_ids)
        is_hit = len(nodes) == len(token_ids)
        stays = is_hit and self._keeps_subtree
        if self._keeps_subtree:
            self._spend(0)
        if self._calibrated is not None:
            self._calibrated.learn(self.tree, [0, *nodes], token_ids)
        self._num_committed += len(token_ids)
        if self._lookup is not None:
            self._lookup.accept(token_ids)
        if self.is_rooted:
            path = nodes[:-1] if is_hit else nodes
            self._num_cached += self._num_caught_up + 1 + sum(node in self._expanded for node in path)
        places = self._growth.reroot(nodes[-1]) if stays else {}
        if self._calibrated is not None:
            self._calibrated.reroot(places)
        if stays:
            self._expanded = {places[node] for node in self._expanded if node in places}
            self._num_caught_up = 0
            self._hang_lookup()
        else:
            self._plant(token_ids[-1])
        return is_hit

    @property
    def _text_len(self) -> int:
        return len(self._trace.prompt_ids) + self._num_committed

    def _num_worth(self, frontier: Sequence[float]) -> int:
        assert self.rule is not None, "asked only where there is a rule"
        return self.rule.num_nodes(frontier, chances_of(self.tree.log_probs), self._config.verify_width)

    def _plant(self, root: int) -> None:
        config = self._config
        self._growth = BestFirstGrowth(
            root, horizon=self._horizon, draft_width=config.draft_width, min_mass=self._policy.min_mass
        )
        self._expanded, self._num_caught_up = set(), 0
        if self._calibrated is not None:
            self._calibrated.reroot({})
        self._hang_lookup()

    def _hang_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.hang_into(self._growth)

    def _guesses(self, node: int) -> Guesses:
        """What the draft thinks comes after a node."""
        trace, place = self._trace, self._num_committed + self.tree.depths[node]
        path = tuple(self.tree.path_tokens(node))
        is_true = path == trace.token_ids[self._num_committed : place] and place < len(trace.token_ids)
        if not is_true:
            place = hash((self._text_len, *path)) % len(trace.token_ids)  # whole numbers hash alike in every run
        num_children = self._policy.num_children
        return trace.children[place][:num_children], trace.log_probs[place][:num_children]

    def _add_children(self, node: int, guesses: Guesses) -> None:
        token_ids, log_probs = guesses
        if self._calibrated is None:
            self._growth.add_children(node, token_ids, log_probs)
            return
        chances = self._calibrated.add(self._growth, node, token_ids, log_probs)
        if self.rule is not None:
            self.rule.measure_children(chances)
