"""A target and a drafter without a model.

The token after a prefix is a hash of its last two tokens and of its length, so a guess that was made for another place
of the text is right by chance alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from forerun.core.config import SamplingParams
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree

LOG_PROBS: Final = tuple(math.log(0.6 * 0.4**rank) for rank in range(12))  # of a node's children, by rank


class Language:
    """What the target says after every prefix, and what a drafter guesses.

    Args:
        skill: chance that the likeliest guess is right, decided by hash.
        num_guesses: guesses after each prefix.
    """

    def __init__(self, seed: int, *, vocab_size: int, skill: float, num_guesses: int) -> None:
        self.vocab_size = vocab_size
        self.skill = skill
        self._seed = seed
        self._num_guesses = min(num_guesses, vocab_size)
        self._known: dict[tuple[int, int, int], list[int]] = {}

    def token_after(self, before: int, last: int, length: int) -> int:
        """The target's choice after a prefix of `length` tokens that ends with `before`, `last`."""
        return hash((self._seed, before, last, length)) % self.vocab_size

    def guesses_after(self, before: int, last: int, length: int) -> list[int]:
        """Distinct tokens, likeliest first."""
        key = (before, last, length)
        if key not in self._known:
            roll = hash((self._seed, length, last, before, 1))
            shift = 0 if roll % 1000 < 1000 * self.skill else 1 + roll // 1000 % (self.vocab_size - 1)
            first = self.token_after(before, last, length) + shift
            self._known[key] = [(first + rank) % self.vocab_size for rank in range(self._num_guesses)]
        return self._known[key]

    def text(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        """The prompt and what the target says after it."""
        text = list(prompt_ids)
        for _ in range(num_tokens):
            text.append(self.token_after(before_last(text), text[-1], len(text)))
        return text

    def choices(self, text: Sequence[int], tree: TokenTree) -> list[int]:
        """The target's choice after every node of a tree below `text`."""
        return [self.token_after(*tail(text, tree, node)) for node in range(len(tree))]

    def has_guessed(self, text: Sequence[int], tree: TokenTree) -> bool:
        """True when every node is what the drafter guesses after the node's own path below `text`."""
        return all(
            tree.token_ids[node] in self.guesses_after(*tail(text, tree, tree.parents[node]))
            for node in range(1, len(tree))
        )


def before_last(text: Sequence[int]) -> int:
    return text[-2] if len(text) > 1 else 0


def tail(text: Sequence[int], tree: TokenTree, node: int) -> tuple[int, int, int]:
    """The last two tokens and the length of the text that ends with `node`."""
    before = tree.token_ids[tree.parents[node]] if node else before_last(text)
    return before, tree.token_ids[node], len(text) + tree.depths[node]


class FakeGrower:
    """Grows and re-roots as `DraftTree` does, and knows the language in place of a model.

    Args:
        spend: lets virtual seconds pass.
        is_strict: a text that the target cannot have said is an error of the protocol.
    """

    def __init__(
        self, language: Language, *, horizon: int, draft_width: int, expansion_s: float = 0.0,
        spend: Callable[[float], object] = lambda _: None, is_strict: bool = True,
    ) -> None:  # fmt: skip
        self._language = language
        self._horizon = horizon
        self._draft_width = draft_width
        self._expansion_s = expansion_s
        self._spend = spend
        self._is_strict = is_strict
        self.text: list[int] = []

    @property
    def tree(self) -> TokenTree:
        return self._growth.tree

    @property
    def is_rooted(self) -> bool:
        return 0 in self._expanded

    def reset(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self.text = list(prompt_ids)
        self._num_prefills = len(prompt_ids) // 4
        self._plant(prompt_ids[-1])

    def prefill(self) -> bool:
        if self._num_prefills == 0:
            return False
        self._num_prefills -= 1
        self._spend(self._expansion_s)
        return True

    def expand(self) -> bool:
        batch = self._growth.next_batch()
        if not batch:
            return False
        self._spend(self._expansion_s)
        for node in batch:
            guesses = self._language.guesses_after(*tail(self.text, self.tree, node))
            self._growth.add_children(node, guesses, LOG_PROBS[: len(guesses)])
        self._expanded.update(batch)
        return True

    def advance(self, token_ids: Sequence[int]) -> bool:
        for token_id in token_ids:
            own = self._language.token_after(before_last(self.text), self.text[-1], len(self.text))
            assert not self._is_strict or token_id == own, f"the drafter believes in {token_ids} after {self.text}"
            self.text.append(token_id)
        nodes = self.tree.descend(token_ids)
        is_hit = len(nodes) == len(token_ids)
        if is_hit:
            places = self._growth.reroot(nodes[-1])
            self._expanded = {places[node] for node in self._expanded if node in places}
        else:
            self._plant(token_ids[-1])
        return is_hit

    def _plant(self, root: int) -> None:
        self._growth = BestFirstGrowth(root, horizon=self._horizon, draft_width=self._draft_width)
        self._expanded: set[int] = set()
