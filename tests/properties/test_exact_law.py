"""The law of the text is the target's own, in whole numbers: no tolerance, no statistics.

The target is a table: whole-number weights for the next token after every prefix, which sum to a constant. Since the
choice after a prefix is one random variable with that law (see `sampling.sample`), one round is exhausted by listing
every combination of choices at the nodes of its tree.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.sampling.sample import sample
from forerun.sampling.truncation import filter_scores
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk
from tests.marks import rest_soak

WEIGHT_SUM = 16
MAX_COMBINATIONS = 260
NUM_DEFAULT_CHUNKS = 4
NUM_CHUNKS = 200
CASES_PER_CHUNK = 50

Text = tuple[int, ...]
Law = dict[Text, Fraction]
Walk = Callable[[TokenTree, list[int]], Acceptance]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A target and a drafter as functions of the text so far. End of text: `eos_id`, or `num_tokens` tokens."""

    number: int
    vocab_size: int
    num_tokens: int
    eos_id: int | None

    def weights(self, text: Text) -> list[int]:
        """Whole numbers with the sum WEIGHT_SUM, some of them zero."""
        rng = random.Random(f"target {self.number} {text}")
        cuts = sorted(rng.randint(0, WEIGHT_SUM) for _ in range(self.vocab_size - 1))
        return [right - left for left, right in zip([0, *cuts], [*cuts, WEIGHT_SUM], strict=True)]

    def tree(self, text: Text) -> TokenTree:
        """Any tree: random parents at depth 2 at most, distinct tokens among siblings."""
        rng = random.Random(f"drafter {self.number} {text}")
        tree = TokenTree(rng.randrange(self.vocab_size))
        max_nodes = 1
        while self.vocab_size ** (max_nodes + 1) <= MAX_COMBINATIONS:
            max_nodes += 1
        for _ in range(rng.randint(0, max_nodes - 1)):
            parent = rng.randrange(len(tree))
            token_id = rng.randrange(self.vocab_size)
            if token_id not in tree.children(parent) and tree.depths[parent] < 3:
                tree.add(parent, token_id, 0.0)
        return tree

    def cut(self, text: Text) -> Text:
        """The text up to its end."""
        if self.eos_id in text:
            text = text[: text.index(self.eos_id) + 1]
        return text[: self.num_tokens]

    def is_ended(self, text: Text) -> bool:
        return len(text) >= self.num_tokens or (bool(text) and text[-1] == self.eos_id)


def random_table(number: int) -> Table:
    rng = random.Random(number)
    vocab_size = rng.randint(3, 6)
    return Table(
        number=number,
        vocab_size=vocab_size,
        num_tokens=rng.randint(1, 4 if vocab_size == 3 else 3),
        eos_id=rng.choice([None, rng.randrange(vocab_size)]),
    )


def target_law(table: Table, text: Text = ()) -> Law:
    """Token by token: the product of the target's own probabilities."""
    if table.is_ended(text):
        return {text: Fraction(1)}
    law: Law = {}
    for token_id, weight in enumerate(table.weights(text)):
        if weight:
            for end, share in target_law(table, (*text, token_id)).items():
                law[end] = Fraction(weight, WEIGHT_SUM) * share
    return law


def round_law(table: Table, text: Text, walk_tree: Walk) -> dict[Text, Fraction]:
    """What one round adds to the text: every combination of choices at the tree's nodes, with its probability."""
    tree = table.tree(text)
    laws = [table.weights((*text, *tree.path_tokens(node))) for node in range(len(tree))]
    options = [[(token_id, weight) for token_id, weight in enumerate(law) if weight] for law in laws]
    totals: Counter[Text] = Counter()
    for combination in product(*options):
        weight = 1
        for _, factor in combination:
            weight *= factor
        totals[walk_tree(tree, [token_id for token_id, _ in combination]).tokens] += weight
    return {tokens: Fraction(total, WEIGHT_SUM ** len(tree)) for tokens, total in totals.items()}


def emitted_law(table: Table, walk_tree: Walk = walk, text: Text = ()) -> Law:
    """Round by round until the text ends, every round with a tree of its own."""
    if table.is_ended(text):
        return {text: Fraction(1)}
    law: Law = {}
    for tokens, share in round_law(table, text, walk_tree).items():
        for end, rest in emitted_law(table, walk_tree, table.cut((*text, *tokens))).items():
            law[end] = law.get(end, Fraction(0)) + share * rest
    return law


def law_differs(number: int, walk_tree: Walk = walk) -> bool:
    table = random_table(number)
    return emitted_law(table, walk_tree) != target_law(table)


def check_laws(chunk: int) -> list[int]:
    numbers = range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)
    return [number for number in numbers if law_differs(number)]


@pytest.mark.parametrize("chunk", rest_soak(range(NUM_CHUNKS), NUM_DEFAULT_CHUNKS))
def test_the_law_of_the_emitted_text_is_the_targets(chunk: int) -> None:
    assert check_laws(chunk) == []


def walk_with_the_drafts_bonus(tree: TokenTree, choices: list[int]) -> Acceptance:
    """Broken: where the walk ends above a drafted child, emits that child's token in place of the target's choice."""
    honest = walk(tree, choices)
    last = honest.path[-1] if honest.path else 0
    children = [node for node in range(len(tree)) if tree.parents[node] == last]
    bonus = tree.token_ids[children[0]] if children else honest.bonus_token
    return Acceptance(path=honest.path, tokens=(*honest.tokens[:-1], bonus))


def walk_past_the_parent(tree: TokenTree, choices: list[int]) -> Acceptance:
    """Broken: compares a node with the choice of the node before it in the list rather than of its parent."""
    path = []
    for node in range(1, len(tree)):
        if tree.token_ids[node] != choices[node - 1]:
            break
        path.append(node)
    bonus = choices[path[-1] if path else 0]
    return Acceptance(path=tuple(path), tokens=(*(tree.token_ids[node] for node in path), bonus))


def walk_without_the_bonus_choice(tree: TokenTree, choices: list[int]) -> Acceptance:
    """Broken: the bonus is the root's choice, wherever the walk ended."""
    honest = walk(tree, choices)
    return Acceptance(path=honest.path, tokens=(*honest.tokens[:-1], choices[0]))


@pytest.mark.parametrize("broken", [walk_with_the_drafts_bonus, walk_past_the_parent, walk_without_the_bonus_choice])
def test_a_broken_walk_changes_the_law(broken: Walk) -> None:
    assert sum(law_differs(number, broken) for number in range(200)) >= 10


# The filters against whole numbers. Weights are squares, so that temperatures 1/2, 1 and 2 keep them rational.

TEMPERATURES = {0.5: Fraction(1, 2), 1.0: Fraction(1), 2.0: Fraction(2)}
BOUNDARY = Fraction(1, 10**9)


@dataclass(frozen=True, kw_only=True)
class FilterCase:
    roots: list[int]  # square roots of the weights at temperature 1
    params: SamplingParams

    def weights(self) -> list[int]:
        power = {0.5: 4, 1.0: 2, 2.0: 1}[self.params.temperature]
        return [root**power for root in self.roots]

    def scores(self) -> torch.Tensor:
        logits = torch.tensor([self.roots], dtype=torch.float64).log() * 2
        return filter_scores(logits / self.params.temperature, self.params)


def random_filter_case(number: int) -> FilterCase:
    rng = random.Random(number)
    return FilterCase(
        roots=[rng.randint(1, 6) for _ in range(rng.randint(3, 12))],
        params=SamplingParams(
            temperature=rng.choice(list(TEMPERATURES)),
            top_k=rng.choice([0, 1, 2, 3, 5, 20]),
            top_p=rng.choice([1.0, rng.randint(1, 63) / 64]),
            min_p=rng.choice([0.0, rng.randint(0, 64) / 64]),
        ),
    )


def rational_law(case: FilterCase) -> list[Fraction] | None:
    """The filtered law, or None where a token lies so near a limit that rounding may decide."""
    params = case.params
    weights = case.weights()
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))[: params.top_k or None]
    total = sum(weights[token] for token in ranked)
    before = Fraction(0)
    kept = []
    for place, token in enumerate(ranked):
        ratio = Fraction(weights[token], weights[ranked[0]])
        is_near = place > 0 and abs(before - Fraction(params.top_p)) < BOUNDARY
        if (params.top_p < 1 and is_near) or (ratio < 1 and abs(ratio - Fraction(params.min_p)) < BOUNDARY):
            return None
        if (params.top_p == 1 or before < Fraction(params.top_p)) and ratio >= Fraction(params.min_p):
            kept.append(token)
        before += Fraction(weights[token], total)
    kept_sum = sum(weights[token] for token in kept)
    return [Fraction(weight, kept_sum) if token in kept else Fraction(0) for token, weight in enumerate(weights)]


def test_filters_keep_the_tokens_and_the_law_that_whole_numbers_give() -> None:
    num_checked = 0
    for number in range(4000):
        case = random_filter_case(number)
        expected = rational_law(case)
        if expected is None:
            continue
        scores = case.scores()
        assert [score > float("-inf") for score in scores[0].tolist()] == [share > 0 for share in expected], case
        law = scores.softmax(-1)[0].tolist()
        assert all(abs(share - float(exact)) < 1e-12 for share, exact in zip(law, expected, strict=True)), case
        num_checked += 1
    assert num_checked > 3000


@pytest.mark.parametrize("num_kept", range(1, 9))
def test_equal_scores_are_kept_by_lowest_id(num_kept: int) -> None:
    scores = filter_scores(
        torch.tensor([[1.0] * 4 + [2.0] + [1.0] * 3]), SamplingParams(temperature=1.0, top_k=num_kept)
    )
    kept = (scores[0] > float("-inf")).nonzero()[:, 0].tolist()
    assert kept == sorted([4, 0, 1, 2, 3, 5, 6, 7][:num_kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_are_chosen_by_lowest_id(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        scores = torch.randint(3, (4, 37), generator=generator).to(dtype)
        expected = [min(range(37), key=lambda token: (-row[token], token)) for row in scores.tolist()]
        assert sample(scores, None).token_ids == expected
