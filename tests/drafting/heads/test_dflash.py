"""DFlash heads: their logits against a reference, and the tree that grows in them against all trees."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.core.sublayers import NOTHING
from forerun.drafting.heads.dflash_network import BATCH, DFlashDrafter, DFlashExecutor, DFlashRows, num_steps
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.policies import TreePolicy
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree
from tests.drafting.heads.dflash_reference import dflash_outputs, logits_after
from tests.drafting.heads.random_heads import CAPACITY, dflash_head, dflash_tensors, random_body, random_dflash
from tests.drafting.heads.runners import runner_of
from tests.marks import rest_slow
from tests.textbook import gumbel
from tests.tiny import plain_spec, proposal_of, tiny_spec

CLOSE = 1e-10


class Case:
    """A random head and a text with features."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        target = tiny_spec(rng, num_layers=rng.randint(1, 4), vocab_size=rng.randint(8, 30))
        self.spec = random_dflash(rng, target)
        self.vocab_size = target.vocab_size
        weights = dflash_tensors(self.spec, target, seed)
        self.arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        head = dflash_head(self.spec, weights)
        runner = runner_of(self.spec.body, lambda cache: DFlashExecutor(head, cache))
        assert isinstance(runner.executor, DFlashExecutor)
        self.features = torch.randn(
            CAPACITY, self.spec.num_taps, target.hidden_size,
            generator=torch.Generator().manual_seed(seed), dtype=torch.float64,
        )  # fmt: skip
        self.known: set[int] = set()
        self.waiting = TextFeatures(range(self.spec.num_taps), torch.float64)
        self.rows = DFlashRows(runner, runner.executor, self.waiting, 0)
        self.text = self.tokens(rng.randint(2, 16))
        self.rows.start_text(self.text, "")

    def tokens(self, number: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(number)]

    def know(self, start: int, stop: int) -> None:
        self.waiting.read(start, self.features[start:stop])
        self.known |= set(range(start, stop))

    def check(self) -> None:
        """Every node of a random tree has the logits of the reference."""
        assert self.rows.draft(self.text)
        tree = TokenTree(self.text[-1])
        for _ in range(8):
            tree.add(self.rng.randrange(len(tree)), self.rng.randrange(self.vocab_size), -1.0)
        features = {place: self.features[place].numpy() for place in self.known}
        outputs = dflash_outputs(self.spec, self.arrays, self.text[-1], len(self.text) - 1, features)
        logits = self.rows.expand(tree, list(range(len(tree))), tree.token_ids, self.text, NOTHING)
        for node, row in enumerate(logits.numpy()):
            expected = logits_after(self.spec, self.arrays, outputs, tree.depths[node], tree.token_ids[node])
            assert np.array_equal(np.isfinite(row), np.isfinite(expected))
            is_there = np.isfinite(expected)
            assert np.abs(row[is_there] - expected[is_there]).max(initial=0.0) <= CLOSE


@pytest.mark.parametrize("seed", rest_slow(range(500), 8))
def test_every_node_has_the_logits_of_the_published_formulas(seed: int) -> None:
    case = Case(seed)
    start = case.rng.choice([0, case.rng.randrange(len(case.text) - 1)])  # the target's cache held what is before
    case.know(start, len(case.text) - 1)
    case.rows.prefill(case.text)
    for _ in range(2):
        case.check()
        root = len(case.text) - 1
        more = case.rng.randint(1, 4)
        case.text += case.tokens(more)
        first = case.rng.choice([root, root + more - 1])  # one round, or several of which the head saw the last
        case.know(first, root + more)
        case.rows.told(TokenTree(0), [], {}, case.text)


def test_the_first_place_of_a_block_holds_the_committed_token() -> None:
    """With the mask there, heads draft nonsense: the mean length fell from 6.3 to 1.5 (hipfire#483)."""
    case = Case(5)
    case.know(0, len(case.text) - 1)
    assert case.rows.draft(case.text)
    tree = TokenTree(case.text[-1])
    first = case.rows.expand(tree, [0], tree.token_ids, case.text, NOTHING)
    case.text[-1] = (case.text[-1] + 1) % case.vocab_size
    case.rows.told(tree, [], {}, case.text)
    assert case.rows.draft(case.text)
    assert not torch.equal(first, case.rows.expand(tree, [0], tree.token_ids, case.text, NOTHING))


def test_nothing_is_drafted_where_the_last_feature_is_unknown() -> None:
    case = Case(6)
    assert not case.rows.draft(case.text)
    case.know(len(case.text) - 2, len(case.text) - 1)
    case.check()


TARGET = plain_spec(vocab_size=9)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.5])
@pytest.mark.parametrize("seed", rest_slow(range(2), 1))
def test_the_proposal_is_the_best_of_all_trees(temperature: float, has_pairs: bool, penalty: float, seed: int) -> None:
    """Greedy: by the product of the head's probabilities; sampled: by those that the noise gives, place by place.

    A penalty counts the tokens drafted before in the same block, and a token that is ruled out is never drafted.
    """
    rng = random.Random(seed)
    body = random_body(rng, vocab_size=TARGET.vocab_size, num_layers=1)
    pairs = {"pair_rank": 4, "num_pairs": 4} if has_pairs else {"pair_rank": 0, "num_pairs": 0}
    one = {"windows": (None,), "is_causal": (False,), "conv_kernel": 0}
    spec = random_dflash(rng, TARGET, body=body, block_size=4, **one, **pairs)
    weights = dflash_tensors(spec, TARGET, seed)
    head = dflash_head(spec, weights)
    runner = runner_of(spec.body, lambda cache: DFlashExecutor(head, cache))
    config = DraftHead(model="-", verify_width=8, adaptive=False)
    drafter = DFlashDrafter(
        runner, config, TreePolicy(looks_up=False), target_vocab_size=TARGET.vocab_size, taps=range(spec.num_taps)
    )
    text = [3, 1, 4, 1, 5]
    bias = {2: -1000.0} if penalty else {}
    params = SamplingParams(temperature=temperature, presence_penalty=penalty, logit_bias=bias)
    noise = KeyedNoise(11, TARGET.vocab_size, device="cpu") if temperature else None
    drafter.begin(text, params, noise)
    shape = (4, spec.num_taps, TARGET.hidden_size)
    features = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drafter.read_features(0, features)
    tree = proposal_of(drafter)

    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    outputs = dflash_outputs(spec, arrays, 5, 4, dict(enumerate(features.numpy())))
    worth: dict[tuple[int, ...], float] = {}
    for length in range(1, 4):
        for path in itertools.product(range(TARGET.vocab_size), repeat=length):
            total = 0.0
            for depth, token in enumerate(path):
                scores = logits_after(replace(spec), arrays, outputs, depth, (5, *path)[depth])
                scores = scores - penalty * np.isin(np.arange(TARGET.vocab_size), path[:depth])
                scores[list(bias)] -= 1000.0
                if noise is not None:
                    scores = scores / temperature + gumbel(11, len(text) + depth, TARGET.vocab_size)
                total += scores[token] - math.log(np.exp(scores).sum())
            worth[path] = total
    best = sorted(worth, key=worth.__getitem__, reverse=True)[:7]
    assert {tuple(tree.path_tokens(node)) for node in range(1, len(tree))} == set(best)


def batches_of(rng: random.Random, num_drafted: int, verify_width: int) -> int:
    """How many batches with a node of the block lead to the tree of a random head."""
    growth = BestFirstGrowth(0, horizon=verify_width, draft_width=BATCH)
    num_batches = 0
    steepness = rng.choice([0.01, 1.0, 3.0])
    laws = [sorted(-rng.expovariate(1.0) * steepness for _ in range(min(16, verify_width - 1))) for _ in range(40)]
    while batch := growth.next_batch():
        inside = [node for node in batch if growth.tree.depths[node] < num_drafted]
        num_batches += bool(inside)
        for node in inside:
            growth.add_children(node, range(len(laws[0])), rng.choice(laws)[::-1])
    return num_batches


@pytest.mark.parametrize("verify_width", [2, 6, 9, 16, 24, 32])
@pytest.mark.parametrize("num_drafted", [1, 2, 4, 7, 15])
def test_no_tree_needs_more_steps_than_a_device_makes(num_drafted: int, verify_width: int) -> None:
    rng = random.Random(num_drafted * 100 + verify_width)
    most = num_steps(num_drafted, verify_width)
    assert max(batches_of(rng, num_drafted, verify_width) for _ in range(60)) <= most
    assert most <= num_drafted + 3
