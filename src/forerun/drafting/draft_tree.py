"""The tree of guesses that a draft model grows."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.guessed_tree import GuessedTree
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper
from forerun.speculation.referee.budget import RowBudget
from forerun.speculation.tree import TokenTree


class DraftTree:
    """Grows a tree of guesses, one draft pass at a time.

    Args:
        guessed: the tree and its policy.
        rows: the draft's cache rows.
        target_vocab_size: all guesses are token ids below it.
        vocabulary: maps the draft's token ids to the target's; None: the ids are equal.

    Attributes:
        token_ids: the committed text up to and including the tree's root, in the draft's token ids.
        first_guess: the draft's likeliest token after the root; None until the root is expanded.
    """

    def __init__(
        self, guessed: GuessedTree, rows: DraftRows, *, target_vocab_size: int, vocabulary: VocabularyMap | None = None
    ) -> None:
        self.skipped: SkipSet = NOTHING  # sublayers that draft passes skip; may change only between trees
        self._guessed = guessed
        self._rows = rows
        self._runner = rows.runner
        num_draft = self._runner.spec.vocab_size
        self._vocabulary = vocabulary or VocabularyMap.of_equal_ids(num_target=target_vocab_size, num_draft=num_draft)
        ids = self._vocabulary.column_ids
        self._column_ids = None if ids is None else ids.to(self._runner.device)

    @property
    def tree(self) -> TokenTree:
        """The live tree; node 0 is the last committed token."""
        return self._guessed.tree

    @property
    def num_tokens(self) -> int:
        """Length of the committed text, including noted tokens that are not yet applied to the tree."""
        return len(self.token_ids) + len(self._pending)

    @property
    def is_rooted(self) -> bool:
        """True once the root has been expanded, so that the draft has predicted the next token."""
        return self._rows.is_rooted

    def reset(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        """Start a request; the last prompt token is the root. `noise` is the target's, None when greedy."""
        self._pending: list[int] = []
        self.token_ids = self._vocabulary.read(prompt_ids)
        self.first_guess: int | None = None
        self._shaper = self._shaper_of(params, prompt_ids)
        self._is_greedy = params.is_greedy
        self._noise = noise if self._guessed.policy.knows_noise else None
        self._rows.start_text(self.token_ids, owner)
        self._guessed.reset(prompt_ids, self._noise, (owner, params.temperature))

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the draft cannot propose."""
        return self._vocabulary.num_unknown(token_ids)

    def prefill(self) -> bool:
        """Run one wide pass over missing text if the cache lacks much of it; False if it does not."""
        return self._rows.prefill(self.token_ids)

    def expand(self, budget: RowBudget | None = None) -> bool:
        """Run one draft pass over the likeliest unexpanded nodes; False if it would not pay or there is no room.

        Args:
            budget: finds what pays; None: the policy does.
        """
        batch = self._guessed.next_batch(budget) if self._rows.has_room(self._guessed.draft_width) else []
        if not batch:
            return False
        began = perf_counter()
        tree = self.tree
        token_ids = self._vocabulary.read([tree.token_ids[node] for node in batch])
        self._add_children(batch, self._rows.expand(tree, batch, token_ids, self.token_ids, self.skipped), budget)
        if budget is not None:
            budget.measure_expansion(len(batch), perf_counter() - began)
        return True

    def guess(self, logits: Tensor, places: Sequence[int]) -> list[int]:
        """The draft's guesses for these positions, from the logits [T, V] of the rows just before them."""
        return [tokens[0] for tokens in self._rank(logits, places, None, 1)[0]]

    def told(self, token_ids: Sequence[int]) -> None:
        """Store committed tokens until `apply_told` applies them to the tree."""
        self._pending += token_ids

    def apply_told(self) -> bool:
        """Apply all tokens told to the tree; True if the last one was a node of it."""
        if not self._pending:
            return False
        token_ids = self._pending
        self._pending = []
        return self.advance(token_ids)

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Commit tokens below the root; the last one becomes the root. True if it was a node of the tree (a hit)."""
        self.token_ids.extend(self._vocabulary.read(token_ids))
        self._shaper.commit(self._vocabulary.columns(token_ids))
        done = self._guessed.advance(token_ids)
        self._rows.told(self.tree, done.path, done.places, self.token_ids)
        if not done.places:
            self.first_guess = None
        return done.is_hit

    def forget(self) -> None:
        """Drop all texts from the draft's cache."""
        self._rows.forget()

    def _shaper_of(self, params: SamplingParams, prompt_ids: Sequence[int]) -> LogitShaper:
        """Apply the request's parameters to the columns of the draft's logits.

        Biases and penalties of tokens that the draft's vocabulary lacks have no effect here.
        """
        columns = self._vocabulary.columns
        bias = {column: value for token, value in params.logit_bias.items() for column in columns([token])}
        return LogitShaper(
            replace(params, logit_bias=bias),
            self._vocabulary.num_columns,
            columns(prompt_ids),
            device=self._runner.device,
            truncate=self._runner.backend.truncate,
        )

    def _add_children(self, batch: list[int], logits: Tensor, budget: RowBudget | None) -> None:
        """Add the draft's guesses of the next token after each node of `batch`."""
        tree = self.tree
        next_position = len(self.token_ids)
        columns = self._vocabulary.columns
        paths = [columns(tree.path_tokens(node)) for node in batch] if self._shaper.needs_paths else None
        places = [next_position + tree.depths[node] for node in batch]
        token_ids, log_probs = self._rank(logits, places, paths, self._guessed.policy.num_children)
        if batch[0] == 0:
            self.first_guess = token_ids[0][0]
        if self._guessed.policy.is_chain:
            probs_TV = logits[:, : self._vocabulary.num_columns].softmax(-1)
            for row, node in enumerate(batch):
                confidence = float(probs_TV[row, columns(token_ids[row][:1])[0]])
                self._guessed.add_link(node, token_ids[row], log_probs[row], confidence, is_greedy=self._is_greedy)
        else:
            self._guessed.add_children(batch, token_ids, log_probs, budget)

    def _rank(
        self, logits: Tensor, places: Sequence[int], paths: list[list[int]] | None, num_children: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The likeliest tokens at these positions, and their log-probabilities."""
        num_columns = self._vocabulary.num_columns
        scores = self._shaper.shape(logits if logits.shape[1] == num_columns else logits[:, :num_columns], paths)
        noise = None if self._noise is None else self._noise.at(places)
        return self._runner.backend.topk(
            scores, noise, num_children, temperature=self._shaper.temperature_left, column_ids=self._column_ids
        )
