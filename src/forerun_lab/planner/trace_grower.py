"""A tree of guesses that grows from a recorded trace instead of a model."""

from collections.abc import Callable, Sequence
from typing import Final

from forerun.core.config import SamplingParams
from forerun.drafting.draft_rows import MAX_CATCH_UP
from forerun.drafting.guessed_tree import GuessedTree
from forerun.model.runner import PREFILL_ROWS
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import RowBudget
from forerun.speculation.tree import TokenTree
from forerun_lab.planner.outcome import AnswerOutcome
from forerun_lab.planner.trace import AnswerTrace

NUM_IDS: Final = 1 << 30


class TraceGrower:
    """Grows as `DraftTree` does, and counts the rows that its cache would have.

    A node on the path of the text gets the guesses recorded there. A node off the path is never accepted, so it gets
    the guesses of another position of the answer, always the same for the same node. Their probabilities matter,
    because they determine how many rows such branches take from the true one.

    Args:
        guessed: the tree, which chooses the nodes to expand.
        max_rows: rows for the tree in the draft's cache.
        is_remote: whether it re-roots its tree in another process, which takes time.
        spend: advances the clock by the time of a draft pass over a number of rows, and returns the seconds.
    """

    def __init__(
        self, guessed: GuessedTree, *, max_rows: int, spend: Callable[[int], float], is_remote: bool = False
    ) -> None:
        self.guessed = guessed
        self._max_rows = max_rows
        self._spend = spend
        self._is_remote = is_remote
        self._expanded: set[int] = set()  # the nodes that would have a row in the draft's cache
        self._num_caught_up = 0  # rows there of committed tokens before the root
        self._next: tuple[AnswerTrace, AnswerOutcome] | None = None

    @property
    def tree(self) -> TokenTree:
        return self.guessed.tree

    @property
    def is_rooted(self) -> bool:
        return 0 in self._expanded

    def expect(self, trace: AnswerTrace, outcome: AnswerOutcome) -> None:
        """Set the answer of the next request, and the outcome in which its draft passes are counted."""
        self._next = trace, outcome

    def reset(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        """Start the request of the expected trace."""
        assert self._next is not None, "a request without a trace"
        self._trace, self._outcome = self._next
        assert tuple(prompt_ids) == self._trace.prompt_ids, "the trace of another request"
        self._num_committed = 0  # tokens of the answer
        self._num_cached = 0  # tokens of the text in the draft's cache
        self._expanded = set()
        self._num_caught_up = 0
        seed = self._trace.seed if self.guessed.policy.knows_noise else None
        noise = None if seed is None else KeyedNoise(seed, NUM_IDS)
        self.guessed.reset(prompt_ids, noise, self._trace.temperature)

    def prefill(self) -> bool:
        """Read committed text in one wide pass, if the cache lacks much of it; False if it does not."""
        num_lacking = self._text_len - 1 - self._num_cached
        if num_lacking < MAX_CATCH_UP:
            return False
        num_rows = min(PREFILL_ROWS, num_lacking)
        self._spend(num_rows)
        self._num_cached += num_rows
        return True

    def expand(self, budget: RowBudget | None = None) -> bool:
        """Run a draft pass over the likeliest unexpanded nodes; False if none is worth it or the cache is full.

        Args:
            budget: finds what pays; None: the policy does.
        """
        num_new_rows = self.guessed.draft_width + (0 if self.is_rooted else MAX_CATCH_UP)
        has_room = self._num_caught_up + len(self._expanded) + num_new_rows <= self._max_rows
        num_known = self._num_known
        batch = self.guessed.next_batch(budget) if has_room else []
        if not batch:
            return False
        num_catch_up = 0 if self.is_rooted else self._text_len - 1 - self._num_cached
        spent_s = self._spend(num_catch_up + len(batch))
        self._outcome.num_expansions += 1
        self._num_caught_up += num_catch_up
        self._expanded.update(batch)
        token_ids, log_probs = zip(*map(self._guesses, batch), strict=True)
        self.guessed.add_children(batch, token_ids, log_probs, budget)
        self._outcome.num_useful += self._num_known > num_known
        if budget is not None:
            budget.measure_expansion(len(batch), spent_s)
        return True

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Commit tokens below the root; True if the last of them was a node of the tree."""
        if self._is_remote:
            self._spend(0)
        was_rooted = self.is_rooted
        done = self.guessed.advance(token_ids)
        self._num_committed += len(token_ids)
        if was_rooted:
            self._num_cached += self._num_caught_up + 1 + sum(node in self._expanded for node in done.path)
        self._expanded = {done.places[node] for node in self._expanded if node in done.places}
        self._num_caught_up = 0
        return done.is_hit

    @property
    def _num_known(self) -> int:
        """How many of the text's next tokens are in the tree."""
        return len(self.tree.descend(self._trace.token_ids[self._num_committed :]))

    @property
    def _text_len(self) -> int:
        return len(self._trace.prompt_ids) + self._num_committed

    def _guesses(self, node: int) -> tuple[Sequence[int], Sequence[float]]:
        """The draft's guesses after a node."""
        trace = self._trace
        place = self._num_committed + self.tree.depths[node]
        path = tuple(self.tree.path_tokens(node))
        is_true = path == trace.token_ids[self._num_committed : place] and place < len(trace.token_ids)
        num_children = self.guessed.policy.num_children
        first = 0
        if not is_true:
            place = hash((self._text_len, *path)) % len(trace.token_ids)  # whole numbers hash alike in every run
            first = NUM_IDS >> 1  # other ids, so that these guesses never equal those after tokens of the text
        token_ids = [first + token for token in trace.children[place][:num_children]]
        return token_ids, trace.log_probs[place][:num_children]
