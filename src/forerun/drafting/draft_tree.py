"""A tree of guesses that a draft model grows."""

from collections.abc import Sequence
from time import perf_counter

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.guessed_tree import GuessedTree
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper
from forerun.speculation.tree import TokenTree


class DraftTree:
    """Grows a tree of guesses by one pass of the draft at a time.

    Args:
        guessed: what decides.
        rows: where the draft runs.
        target_vocab_size: guesses are tokens below it.
    """

    def __init__(self, guessed: GuessedTree, rows: DraftRows, *, target_vocab_size: int) -> None:
        self.skipped: SkipSet = NOTHING  # sublayers that draft passes leave out; to be changed between trees alone
        self._guessed, self._rows, self._runner = guessed, rows, rows.runner
        self._vocab_size = min(target_vocab_size, self._runner.spec.vocab_size)
        self._is_known_whole = self._runner.spec.vocab_size == self._vocab_size  # the target knows all of its tokens

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._guessed.tree

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

    @property
    def is_rooted(self) -> bool:
        """True once the root has been expanded: the draft has had its say about the next token."""
        return self._rows.is_rooted

    @property
    def frontier_chance(self) -> float:
        """The chance that the text reaches what the next expansion would expand."""
        return self._guessed.frontier_chance

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        """Start a request; the last prompt token is the root. `noise` is the target's own, None when greedy."""
        self._pending: list[int] = []
        self._token_ids = self._known(prompt_ids)
        self._first_guess: int | None = None
        self._shaper = LogitShaper(params, self._vocab_size, self._token_ids, device=self._runner.device)
        self._noise = noise if self._guessed.policy.knows_noise else None
        self._rows.begin(self._token_ids)
        self._guessed.begin(prompt_ids)

    def prefill(self) -> bool:
        """One wide pass towards the committed text, if the cache is far behind it; False when it is not."""
        return self._rows.prefill(self._token_ids)

    def expand(self) -> bool:
        """One draft pass over the likeliest unexpanded nodes; False when nothing is worth it or room is out."""
        batch = self._guessed.next_batch() if self._rows.has_room(self._guessed.draft_width) else []
        if not batch:
            return False
        began, tree, rule = perf_counter(), self.tree, self._guessed.rule
        token_ids = self._known([tree.token_ids[node] for node in batch])
        self._add_children(batch, self._rows.expand(tree, batch, token_ids, self._token_ids, self.skipped))
        if rule is not None:
            rule.measure_expansion(len(batch), perf_counter() - began)
        return True

    def guess(self, logits: Tensor, places: Sequence[int]) -> list[int]:
        """The draft's guess for the text at these places, from logits [T, V] of rows before them."""
        return [tokens[0] for tokens in self._rank(logits, places, None, 1)[0]]

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
        self._token_ids.extend(self._known(token_ids))
        self._shaper.commit(self._token_ids[-len(token_ids) :])
        done = self._guessed.advance(token_ids)
        self._rows.follow(self.tree, done.path, done.places, self._token_ids)
        if not done.places:
            self._first_guess = None
        return done.is_hit

    def close(self) -> None:
        """Let go of the draft's text."""
        self._rows.close()

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        """The ids as the draft can read them: one that only the target has becomes id 0, at the price of a guess."""
        return [token_id if token_id < self._vocab_size else 0 for token_id in token_ids]

    def _add_children(self, batch: list[int], logits: Tensor) -> None:
        """Guess what the target will choose after each node of `batch`."""
        tree, next_position = self.tree, len(self._token_ids)
        paths = [self._known(tree.path_tokens(node)) for node in batch] if self._shaper.needs_paths else None
        places = [next_position + tree.depths[node] for node in batch]
        token_ids, log_probs = self._rank(logits, places, paths, self._guessed.policy.num_children)
        if batch[0] == 0:
            self._first_guess = token_ids[0][0]
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            self._guessed.add_children(node, tokens, values)

    def _rank(
        self, logits: Tensor, places: Sequence[int], paths: list[list[int]] | None, num_children: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The likeliest guesses of the target's choices at these places of the text, and their log-probabilities."""
        scores = self._shaper.shape(logits if self._is_known_whole else logits[:, : self._vocab_size], paths)
        noise = None if self._noise is None else self._noise.at(places)
        return self._runner.backend.topk(scores, noise, num_children, temperature=self._shaper.temperature_left)
