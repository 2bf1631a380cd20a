"""EAGLE-3 heads: their logits on trees against a reference, however the text came into the cache."""

import random

import numpy as np
import pytest
import torch

from forerun.core.sublayers import NOTHING
from forerun.drafting.heads.eagle_network import EagleExecutor, EagleRows
from forerun.drafting.heads.features import TextFeatures
from forerun.speculation.tree import TokenTree
from tests.drafting.heads.eagle_reference import Floats, eagle_logits
from tests.drafting.heads.random_heads import CAPACITY, eagle_head, eagle_tensors, random_eagle
from tests.drafting.heads.runners import runner_of
from tests.marks import rest_slow
from tests.tiny import tiny_spec

CLOSE = 1e-10


class Case:
    """A random head, a text with features, some of them unknown, and a tree behind it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        target = tiny_spec(rng, num_layers=rng.randint(1, 4))
        self.spec = random_eagle(rng, target)
        self.weights = eagle_tensors(self.spec, target, seed)
        self.arrays: dict[str, Floats] = {name: tensor.numpy() for name, tensor in self.weights.items()}
        self.vocab_size = target.vocab_size
        self.text = self.tokens(rng.randint(2, 16))
        generator = torch.Generator().manual_seed(seed)
        shape = (CAPACITY, self.spec.num_taps, target.hidden_size)
        self.features = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.known: set[int] = set()
        self.waiting = TextFeatures(range(self.spec.num_taps), torch.float64)
        head = eagle_head(self.spec, self.weights)
        runner = runner_of(self.spec.body, lambda cache: EagleExecutor(head, cache))
        assert isinstance(runner.executor, EagleExecutor)
        self.rows = EagleRows(runner, runner.executor, self.waiting, 100)
        self.rows.start_text(self.text, "")

    def tokens(self, number: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(number)]

    def know(self, start: int, stop: int) -> None:
        """The target has run the tokens at these places."""
        if start < stop:
            self.waiting.read(start, self.features[start:stop])
            self.known |= set(range(start, stop))

    def grow_and_check(self) -> TokenTree:
        """Expand a random tree in a few passes; every row has the logits of its path read alone."""
        tree = TokenTree(self.text[-1])
        unexpanded = [0]
        for _ in range(self.rng.randint(1, 4)):
            batch = sorted(self.rng.sample(unexpanded, self.rng.randint(1, min(3, len(unexpanded)))))
            logits = self.rows.expand(tree, batch, [tree.token_ids[node] for node in batch], self.text, NOTHING)
            for node, row in zip(batch, logits, strict=True):
                features = {place: self.features[place].numpy() for place in self.known}
                expected = eagle_logits(self.spec, self.arrays, self.text, features, tree.path_tokens(node))
                assert np.abs(row.numpy() - expected).max() <= CLOSE
            unexpanded = [node for node in unexpanded if node not in batch]
            for node in batch:
                for token in set(self.tokens(2)):
                    unexpanded.append(tree.add(node, token, -1.0))
        return tree

    def commit(self, tree: TokenTree) -> None:
        """Accept a random path, and a bonus token; the target has run the root and the path."""
        path = [0]
        root = len(self.text) - 1
        while children := list(tree.children(path[-1]).values()):
            path.append(self.rng.choice(children))
            if self.rng.random() < 0.3:
                break
        accepted = path[1:]
        self.text += [*(tree.token_ids[node] for node in accepted), *self.tokens(1)]
        if self.rng.random() < 0.8:
            self.know(root, len(self.text) - 1)
        else:  # rounds of which the head was not told, and one whose root it was
            self.text += self.tokens(3)
            self.know(len(self.text) - 2, len(self.text) - 1)
        self.rows.told(tree, accepted, {}, self.text)


@pytest.mark.parametrize("seed", rest_slow(range(500), 8))
def test_every_row_of_a_tree_has_the_logits_of_the_published_formulas(seed: int) -> None:
    case = Case(seed)
    start = case.rng.choice([0, 0, case.rng.randrange(len(case.text) - 1)])  # the target's cache held what is before
    while start < len(case.text) - 1:
        stop = min(len(case.text) - 1, start + case.rng.randint(1, 20))
        case.know(start, stop)
        case.rows.prefill(case.text)
        start = stop
    for _ in range(case.rng.randint(1, 4)):
        case.commit(case.grow_and_check())


def test_a_root_whose_feature_is_unknown_is_not_expanded() -> None:
    case = Case(3)
    assert not case.rows.has_room(1)
    case.know(len(case.text) - 2, len(case.text) - 1)
    assert case.rows.has_room(1)
    case.grow_and_check()


def test_read_features_are_dropped() -> None:
    case = Case(4)
    case.know(0, len(case.text) - 1)
    for _ in range(5):
        case.commit(case.grow_and_check())
        assert len(case.waiting) < 12
