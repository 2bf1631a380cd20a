"""Acceptance as SWIFT's published code does it, in our own words, each of its three faults to be switched on alone.

Legend: R paths from the root to the leaves of a comb, D the longest path's nodes below the root.

Source: SWIFT, arXiv 2410.06916; code of hemingkx/SWIFT at 88caed7, where evaluation/model/swift/utils.py chooses the
path. The faults are repaired in the code of EAGLE, of which it is a copy.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.config import SamplingParams
from forerun.core.sublayers import SkipSet
from forerun.decoding.host_loop import Verifier
from forerun.drafting.drafter import Drafter
from forerun.sampling.sample import Choices, sample
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance
from tests.drafting.layer_skip.toy_law import VOCAB_SIZE, Text, next_law, raw_law

PAD_NODE = -1


def padded_paths(tree: TokenTree) -> list[list[int]]:
    """Every path from the root to a leaf, root included; short ones are filled up with the node -1."""
    leaves = [node for node in range(len(tree)) if node not in tree.parents]
    paths = []
    for leaf in leaves:
        path = [leaf]
        while path[0] > 0:
            path.insert(0, tree.parents[path[0]])
        paths.append(path)
    longest = max(map(len, paths))
    return [path + [PAD_NODE] * (longest - len(path)) for path in paths]


def padded_walk(tree: TokenTree, choices: Sequence[int], pad_token: int = 0) -> Acceptance:
    """Greedy acceptance with fault 3: a pad is compared like a drafted token, and what the target chooses behind it is
    read at index -1, that is at the tree's last node."""
    paths = padded_paths(tree)
    tokens = [[pad_token if node == PAD_NODE else tree.token_ids[node] for node in path] for path in paths]
    lengths = []
    for path, row in zip(paths, tokens, strict=True):
        length = 0
        while length + 1 < len(path) and row[length + 1] == choices[path[length]]:
            length += 1
        lengths.append(length)
    best = max(range(len(paths)), key=lengths.__getitem__)
    path, length = paths[best], lengths[best]
    bonus = choices[path[length]]
    return Acceptance(
        path=tuple(path[1 : length + 1]), bonus_token=bonus, tokens=(*tokens[best][1 : length + 1], bonus)
    )


class PaddedTarget(Verifier):
    """A target that keeps a row for each accepted pad: index -1 behind the text is the text's own last row."""

    def commit(self, tree: TokenTree, acceptance: Acceptance) -> None:
        cache, rows = self._runner.cache, [0, *acceptance.path]
        spare = [row for row in range(len(tree)) if row not in rows]
        for place, row in enumerate(rows):
            if row == PAD_NODE:
                rows[place] = spare.pop()
                slot = cache.committed_len + rows[place]
                cache.storage_2LSKD[:, :, slot] = cache.storage_2LSKD[:, :, cache.committed_len - 1]
        self._runner.commit(rows, (tree.token_ids[0], *acceptance.tokens[:-1]))
        self._shaper.commit(acceptance.tokens)
        self.root = acceptance.bonus_token


class RawBonusTarget(Verifier):
    """A target with fault 1: where a whole path was accepted, its next token is drawn from the raw logits, as if the
    temperature were 1 and nothing filtered. Only what is chosen at leaves is ever used that way."""

    def choose(self, tree: TokenTree, drafter: Drafter | None = None) -> Choices:
        prefix_len, run = self._runner.cache.committed_len, self._runner.forward
        seen = []

        def note(inputs: object) -> object:
            seen.append(run(inputs))  # type: ignore[arg-type]
            return seen[-1]

        self._runner.forward = note  # type: ignore[method-assign, assignment]
        try:
            honest = super().choose(tree, drafter)
        finally:
            del self._runner.forward
        if len(tree) == 1 or self._noise is None:
            return honest
        positions = [prefix_len + depth + 1 for depth in tree.depths]
        raw = sample(seen[-1].logits[: len(tree)].float(), self._noise.at(positions)).token_ids
        token_ids = [honest.token_ids[node] if node in tree.parents else raw[node] for node in range(len(tree))]
        return Choices(token_ids=token_ids, margins=honest.margins)


@dataclass(frozen=True, kw_only=True)
class RejectionSampler:
    """Rounds of SWIFT's sampling mode on a toy model: recursive rejection over the siblings of a comb.

    Args:
        draft_skips: what the draft leaves out.
        depth, num_siblings: of the comb: a chain, and beside each of its tokens others drawn without replacement.
        has_raw_bonus: fault 1: behind a path that was accepted whole, temperature and top-p are forgotten.
        has_pads: fault 2: behind a sibling, a pad is tested like a draft token 0 that was sure (q = 1); where it is
            rejected, the draft's law of an unrelated node is subtracted; where it is accepted, the next token is read
            at the tree's last node.
    """

    params: SamplingParams
    draft_skips: SkipSet
    depth: int = 2
    num_siblings: int = 2
    has_raw_bonus: bool = False
    has_pads: bool = False

    def text(self, rng: random.Random, num_tokens: int) -> Text:
        text: Text = ()
        while len(text) < num_tokens:
            text = (*text, *self._round(text, rng))
        return text[:num_tokens]

    def _round(self, text: Text, rng: random.Random) -> Text:
        candidates = self._comb(text, rng)
        accepted: Text = ()
        for place, siblings in enumerate(candidates):
            law = next_law((*text, *accepted), self.params)
            token, rest = accept_one(law, siblings, self._draft_law(text, candidates, place), rng)
            if token is None:
                return (*accepted, draw(rest, rng))
            accepted = (*accepted, token)
            if token != siblings[0] and place + 1 < len(candidates):
                return (*accepted, *self._behind_a_leaf(text, accepted, candidates, place + 1, rng))
        return (*accepted, self._bonus((*text, *accepted), rng))

    def _behind_a_leaf(
        self, text: Text, accepted: Text, candidates: list[list[int]], place: int, rng: random.Random
    ) -> Text:
        law = next_law((*text, *accepted), self.params)
        if not self.has_pads:
            return (draw(law, rng),)
        if rng.random() <= law[0]:
            last_node = (*text, *(siblings[0] for siblings in candidates[:-1]), candidates[-1][-1])
            return (0, self._bonus(last_node, rng))
        unrelated = self._draft_law(text, candidates, place)
        return (draw(residual(law, unrelated), rng),)

    def _bonus(self, text: Text, rng: random.Random) -> int:
        return draw(raw_law(text) if self.has_raw_bonus else next_law(text, self.params), rng)

    def _comb(self, text: Text, rng: random.Random) -> list[list[int]]:
        """For each depth the drawn siblings, that of the chain first."""
        candidates: list[list[int]] = []
        for place in range(self.depth):
            law = self._draft_law(text, candidates, place)
            siblings: list[int] = []
            while len(siblings) < self.num_siblings and sum(law) > 0.0:
                siblings.append(draw(law, rng))
                law = without(law, siblings[-1])
            candidates.append(siblings)
        return candidates

    def _draft_law(self, text: Text, candidates: list[list[int]], place: int) -> list[float]:
        chain = tuple(siblings[0] for siblings in candidates[:place])
        return next_law((*text, *chain), self.params, self.draft_skips)


def accept_one(
    law: list[float], siblings: Sequence[int], draft_law: list[float], rng: random.Random
) -> tuple[int | None, list[float]]:
    """The accepted sibling, or None and the law that is left."""
    for token in siblings:
        if rng.random() * draft_law[token] <= law[token]:
            return token, law
        law, draft_law = residual(law, draft_law), without(draft_law, token)
    return None, law


def residual(law: Sequence[float], draft_law: Sequence[float]) -> list[float]:
    """What is left of a law when a token of the draft's was rejected."""
    return normalised([max(0.0, own - drafted) for own, drafted in zip(law, draft_law, strict=True)])


def without(law: Sequence[float], token: int) -> list[float]:
    return normalised([0.0 if other == token else chance for other, chance in enumerate(law)])


def normalised(law: Sequence[float]) -> list[float]:
    total = sum(law)
    return [chance / total for chance in law] if total > 0.0 else list(law)


def draw(law: Sequence[float], rng: random.Random) -> int:
    return rng.choices(range(VOCAB_SIZE), law)[0]
