"""Guess the draft's next predictions from its earlier predictions after the same tokens.

A draft pass takes as long for eight rows as for one. So the pass that expands a node also expands guessed children of
it: if the draft predicts the guessed token, the tree has grown by two levels in one pass.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np

from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import AcceptanceTable
from forerun.speculation.tree import TokenTree

LONGEST: Final = 3  # tokens of a context
MOST_CONTEXTS: Final = 1 << 13  # of each length; about 10 MB in total
MOST_KEPT: Final = 8  # tokens stored per context, the most recently predicted ones
MOST_GUESSES: Final = 3
Context: TypeAlias = tuple[int, ...]
Said: TypeAlias = dict[int, float]  # tokens and their log-probabilities


class Foresight:
    """The draft's predictions after contexts of one to three tokens, kept across trees and requests.

    The chance of a guess is the mean probability that the draft gave to earlier guesses with the same context length
    and similar rank and probability. Above temperature 0, stored log-probabilities exclude the noise of their position,
    and a guess adds the noise of its own position.
    """

    def __init__(self) -> None:
        self._said: list[dict[Context, Said]] = [{} for _ in range(LONGEST)]
        self._table = AcceptanceTable()

    def reset(self, prompt_ids: Sequence[int], noise: KeyedNoise | None) -> None:
        """Start a request; the last prompt token is the root. `noise` is the target's, None when greedy."""
        self._noise = noise
        self._num_tokens = 0
        self._before: Context = ()
        self.advance(prompt_ids)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Append committed tokens, the last of which is the new root. All nodes get new numbers."""
        self._num_tokens += len(token_ids)
        self._before = (*self._before, *token_ids[-LONGEST:])[-LONGEST:]
        self._cells: dict[int, dict[int, int]] = {}  # node to the cells of the tokens guessed after it

    def guess(self, tree: TokenTree, node: int) -> list[tuple[int, float]]:
        """Tokens that the draft may predict after this node, likeliest first, and the logs of their chances."""
        context = self._context(tree, node)
        for length in range(len(context), 0, -1):
            said = self._said[length - 1].get(context[-length:])
            if said:
                guesses = self._ranked(said, self._num_tokens + tree.depths[node])
                tokens = [token for token, _ in guesses]
                cells, values = self._table.calibrate([value for _, value in guesses], length)
                self._cells[node] = dict(zip(tokens, cells, strict=True))
                return list(zip(tokens, values, strict=True))
        return []

    def told(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
    ) -> None:
        """Store the draft's predictions after these nodes: the same number of tokens for each, likeliest first."""
        values = log_probs if self._noise is None else self._without_noise(tree, nodes, token_ids, log_probs)
        for node, tokens, chances, plain in zip(nodes, token_ids, log_probs, values, strict=True):
            if cells := self._cells.pop(node, None):
                given = finite(tokens, chances)
                for token, cell in cells.items():
                    self._table.count(cell, math.exp(min(given.get(token, -math.inf), 0.0)))
            if said := finite(tokens, plain):
                context = self._context(tree, node)
                for length, contexts in enumerate(self._said[: len(context)], 1):
                    remember(contexts, context[-length:], said)

    def _ranked(self, said: Said, place: int) -> list[tuple[int, float]]:
        """The likeliest of these tokens at a position, and their log-probabilities, none above 0."""
        if self._noise is None:
            return sorted(said.items(), key=itemgetter(1), reverse=True)[:MOST_GUESSES]
        ids_1N = np.array([list(said)], np.int32)
        totals_N = self._noise.of([place], ids_1N)[0] + list(said.values())
        totals_N -= max(0.0, math.log(np.exp(totals_N).sum()))
        return sorted(zip(said, totals_N.tolist(), strict=True), key=itemgetter(1), reverse=True)[:MOST_GUESSES]

    def _without_noise(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        assert self._noise is not None
        noise = self._noise.of([self._num_tokens + tree.depths[node] for node in nodes], np.array(token_ids, np.int32))
        plain: list[list[float]] = (np.array(log_probs) - noise).tolist()
        return plain

    def _context(self, tree: TokenTree, node: int) -> Context:
        """The last tokens up to the node."""
        context: list[int] = []
        while node > 0 and len(context) < LONGEST:
            context.append(tree.token_ids[node])
            node = tree.parents[node]
        return (*self._before, *reversed(context))[-LONGEST:]


def finite(token_ids: Sequence[int], log_probs: Sequence[float]) -> Said:
    """The tokens with finite log-probabilities: filters rule tokens out, and a damaged draft may give NaN."""
    said = dict(zip(token_ids, log_probs, strict=True))
    if all(map(math.isfinite, log_probs)):
        return said
    return {token: value for token, value in said.items() if math.isfinite(value)}


def remember(contexts: dict[Context, Said], context: Context, said: Said) -> None:
    """Store the latest predictions after a context, and drop the context that was stored longest ago if too many."""
    known = contexts.pop(context, None)
    if known is not None and len(known) + len(said) <= MOST_KEPT:
        said = {**known, **said}
    contexts[context] = said
    if len(contexts) > MOST_CONTEXTS:
        del contexts[next(iter(contexts))]
