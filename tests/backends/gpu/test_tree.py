"""Rounds of the tree on the device against the Python classes, with caches that know which text a row stands for."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest
import torch

from forerun.backends.gpu.row_table import FIRST_SLOT, IS_CAUSAL, NUM_ROWS, PREFIX_LEN, TREE_STRIDE, RowTable
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.tree.device_tree import DeviceTree, RoundOutcome, read_outcome
from forerun.backends.gpu.tree.grow import grow
from forerun.backends.gpu.tree.move_slots import move_slots
from forerun.backends.gpu.tree.prompt_lookup import add_lookup_chain, chain_costs
from forerun.backends.gpu.tree.verify_rows import fill_verify_rows
from forerun.backends.gpu.tree.walk import walk as walk_on_device
from forerun.core.drafter_config import MIN_MATCH
from forerun.drafting.prompt_lookup import MATCHES, PromptIndex
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import walk

Text = tuple[int, ...]

NUM_SLOTS = 256
SPARE = NUM_SLOTS - 1
VOCAB = 50
POISON = -999
GRID = 2**16  # log-probabilities are multiples of 1 / GRID, so that their sums are exact in float32, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    verify_width: int = 8
    draft_width: int = 3
    num_children: int = 2
    min_mass: float = 0.0
    rereads: bool = False
    follows: bool = False


class Cache:
    """One number a slot, which names the text that the slot's row was computed for."""

    def __init__(self) -> None:
        self.storage_2LSKD = torch.full((2, 1, NUM_SLOTS, 1, 1), POISON, dtype=torch.int32)
        self._texts: list[Text] = []

    def fill(self, text: Text) -> None:
        for length in range(1, len(text) + 1):
            self._write(length - 1, text[:length])

    def run(self, rows: RowTable) -> list[Text | None]:
        """A pass: the text each row stands for, None for a spare row."""
        header = rows.header.tolist()
        tokens = rows.token_ids.tolist()
        positions = rows.positions.tolist()
        slots = rows.slots.tolist()
        lengths = rows.lengths.tolist()
        prefix_len = header[PREFIX_LEN]
        stride = header[TREE_STRIDE]
        numbers = range(header[NUM_ROWS])
        new = {slots[row]: row for row in numbers}
        assert len(new) + max(slots[: len(numbers)].count(SPARE) - 1, 0) == len(numbers), "no other slot is used twice"
        assert min(new) >= header[FIRST_SLOT]
        assert header[IS_CAUSAL] == 0
        seen = {}
        texts = {}
        for row in numbers:
            assert positions[row] == lengths[row] - 1
            tree_slots = rows.tree_slots[row * stride : row * stride + lengths[row] - prefix_len].tolist()
            seen[row] = [*range(prefix_len), *tree_slots]
            assert seen[row][-1] == slots[row]
            if slots[row] != SPARE:
                assert SPARE not in seen[row]
                texts[row] = tuple(tokens[new[slot]] if slot in new else self.read(slot)[-1] for slot in seen[row])
        for row, text in texts.items():
            self._write(slots[row], text)
        for row, text in texts.items():
            assert [self.read(slot) for slot in seen[row]] == [text[: place + 1] for place in range(len(text))]
        return [texts.get(row) for row in numbers]

    def read(self, slot: int) -> Text:
        return self._texts[int(self.storage_2LSKD[1, 0, slot, 0, 0])]

    def _write(self, slot: int, text: Text) -> None:
        self.storage_2LSKD[:, :, slot] = len(self._texts)
        self._texts.append(text)


def tree_of(shape: Shape) -> DeviceTree:
    return DeviceTree(**asdict(shape), device="cpu")


def table_for(tree: DeviceTree, max_rows: int) -> RowTable:
    """A table that is just large enough."""
    return RowTable(max_rows=max_rows, max_tree_slots=max_rows * tree.shape.stride, num_sublayers=1, device="cpu")


class Request:
    """A text, the tree on the device, both caches, and the tree that the Python classes would have grown."""

    def __init__(self, seed: int, shape: Shape, *, num_tokens: int, num_missing: int = 0) -> None:
        self.rng = random.Random(seed)
        self.shape = shape
        self.seed = seed
        self.text: Text = tuple(self.rng.randrange(4) for _ in range(num_tokens))
        self.tree = tree_of(shape)
        self.draft_rows = table_for(self.tree, shape.draft_width + self.tree.shape.most_behind)
        self.target_rows = table_for(self.tree, shape.verify_width)
        self.target = Cache()
        self.draft = self.target if shape.follows else Cache()
        self.text_P = torch.full((NUM_SLOTS,), POISON, dtype=torch.int32)
        self.text_P[:num_tokens] = torch.tensor(self.text)
        self.target.fill(self.text[:-1])
        self.draft.fill(self.text[: num_tokens - 1 - num_missing])
        self.tree.reset(root=self.text[-1], committed=num_tokens - 1, draft_committed=num_tokens - 1 - num_missing)
        self.num_missing = num_missing
        self.log_probs = [[-self.rng.randrange(1, GRID) / GRID] * (shape.verify_width - 1) for _ in range(2, 6)]

    def law(self, text: Text) -> tuple[list[int], list[float]]:
        """Children after a text, likeliest first."""
        rng = random.Random(f"{self.seed} {text}")
        tokens = rng.sample(range(6), self.shape.num_children)
        return tokens, sorted((-rng.randrange(4 * GRID) / GRID for _ in tokens), reverse=True)

    def plant(self, *, looks_up: bool) -> BestFirstGrowth:
        shape = self.shape
        root = self.text[-1]
        growth = BestFirstGrowth(
            root, horizon=shape.verify_width, draft_width=shape.draft_width, min_mass=shape.min_mass
        )
        if looks_up and shape.verify_width > 1:
            add_lookup_chain(self.tree, self.text_P, chain_costs(self.log_probs))
            index = PromptIndex(MATCHES)
            index.extend(self.text)
            chain = index.continuation(shape.verify_width - 1)
            log_probs = self.log_probs[chain.match_length - MIN_MATCH] if chain.token_ids else []
            growth.add_chain(chain.token_ids, log_probs)
        return growth

    def expand(self, growth: BestFirstGrowth, children: TopK | None) -> TopK:
        """One step on both sides; the top-k of the draft's pass."""
        grow(self.tree, self.draft_rows, self.text_P, children, spare_slot=SPARE)
        texts = self.draft.run(self.draft_rows)
        if children is None:
            before = [texts.pop(0) for _ in range(self.tree.shape.most_behind)]
            wanted_before = [self.text[:-number] for number in range(self.num_missing, 0, -1)]
            assert before == [*wanted_before, *[None] * (len(before) - self.num_missing)]
        assert len(texts) == self.shape.draft_width
        batch = growth.next_batch()
        wanted = [(*self.text, *growth.tree.path_tokens(node)) for node in batch]
        assert [text for text in texts if text is not None] == wanted
        assert texts[: len(batch)] == wanted, "spare rows come last"
        size = self.shape.draft_width, self.shape.num_children
        tokens_WC = torch.full(size, 3, dtype=torch.int32)
        log_probs_WC = torch.full(size, -0.001)
        for row, (node, text) in enumerate(zip(batch, wanted, strict=True)):
            tokens, log_probs = self.law(text)
            tokens_WC[row] = torch.tensor(tokens)
            log_probs_WC[row] = torch.tensor(log_probs)
            growth.add_children(node, tokens, log_probs)
        return TopK(tokens_WC, log_probs_WC)

    def verify(self, tree: TokenTree, children: TopK | None) -> RoundOutcome:
        """Fill rows, run the target, sample, walk, move; all of it compared with the walk down `tree`."""
        fill_verify_rows(self.tree, self.target_rows, children, spare_slot=SPARE)
        texts = self.target.run(self.target_rows)
        assert len(texts) == self.shape.verify_width
        wanted = [(*self.text, *tree.path_tokens(node)) for node in range(len(tree))]
        assert [text for text in texts if text is not None] == wanted, "in the order of the nodes"
        choices = [self.rng.choice([*tree.children(node), self.rng.randrange(VOCAB)]) for node in range(len(tree))]
        choices_R = torch.full((len(texts),), POISON, dtype=torch.int32)
        choices_R[: len(tree)] = torch.tensor(choices)
        bests_R = torch.arange(len(texts)) + 10.0
        seconds_R = torch.arange(len(texts)) / 4
        walk_on_device(self.tree, Sampled(choices_R, bests_R, seconds_R), self.text_P)
        move_slots(self.target.storage_2LSKD, self.tree.target_moves)
        if not self.shape.follows:
            move_slots(self.draft.storage_2LSKD, self.tree.draft_moves)
        acceptance = walk(tree, choices)
        outcome = read_outcome(self.tree.outcome.clone())
        path = 0, *acceptance.path
        assert tuple(outcome.token_ids) == acceptance.tokens
        assert outcome.bests == [10.0 + node for node in path]
        assert outcome.margins == [10.0 + 0.75 * node for node in path]
        assert outcome.num_verified == len(tree)
        self.text = self.text + acceptance.tokens
        self.num_missing = outcome.num_behind
        self.check_caches(outcome)
        return outcome

    def check_caches(self, outcome: RoundOutcome) -> None:
        committed = len(self.text) - 1
        assert self.text_P.tolist() == [*self.text, *[POISON] * (NUM_SLOTS - len(self.text))]
        for cache, length in (self.target, committed), (self.draft, committed - outcome.num_behind):
            assert [cache.read(slot) for slot in range(length)] == [self.text[: slot + 1] for slot in range(length)]

    def play(self, depth: int, *, looks_up: bool = False) -> RoundOutcome:
        growth = self.plant(looks_up=looks_up)
        children = None
        for _ in range(depth):
            children = self.expand(growth, children)
        return self.verify(growth.tree.select(growth.tree.best(self.shape.verify_width)), children)


@pytest.mark.parametrize("seed", range(8))
def test_rounds_are_those_of_the_python_classes(seed: int) -> None:
    rng = random.Random(seed)
    shape = Shape(
        verify_width=rng.choice([4, 7, 9, 18]), draft_width=rng.randint(1, 5), num_children=rng.randint(1, 5),
        min_mass=rng.choice([0.0, 0.0, 0.3]),
    )  # fmt: skip
    request = Request(seed, shape, num_tokens=rng.randint(2, 12), num_missing=rng.randint(0, 1))
    for _ in range(3):
        assert request.play(rng.randint(1, 4), looks_up=rng.random() < 0.5).num_behind <= 1


@pytest.mark.parametrize("seed", range(4))
def test_accepted_nodes_are_read_again_where_their_rows_are_not_kept(seed: int) -> None:
    rng = random.Random(seed)
    shape = Shape(verify_width=rng.choice([2, 4, 9]), draft_width=rng.randint(1, 3), rereads=True)
    request = Request(seed, shape, num_tokens=rng.randint(9, 12), num_missing=rng.randint(0, shape.verify_width - 1))
    for _ in range(5):
        outcome = request.play(rng.randint(1, 4))
        assert outcome.num_behind == len(outcome.token_ids) - 1


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_lacks_nothing_whose_rows_are_those_of_the_verification(seed: int) -> None:
    rng = random.Random(seed)
    request = Request(seed, Shape(draft_width=rng.randint(1, 3), follows=True), num_tokens=rng.randint(2, 9))
    for depth in (2, 0, 0, 3):
        assert request.play(depth).num_behind == 0


def test_decoding_without_a_draft_is_a_tree_of_one_node() -> None:
    request = Request(3, Shape(verify_width=1), num_tokens=4)
    for number in range(3):
        outcome = request.play(0)
        assert len(outcome.token_ids) == outcome.num_verified == 1
        assert outcome.num_behind == number + 1


def planted(*, root: int = 1, committed: int = 4, num_missing: int = 0, shape: Shape) -> DeviceTree:
    """A root alone."""
    tree = tree_of(shape)
    tree.reset(root=root, committed=committed, draft_committed=committed - num_missing)
    return tree


def children_of(tree: DeviceTree, tokens: Sequence[int], log_probs: Sequence[float]) -> dict[int, float]:
    """Costs of the root's children by token, after the root was given these."""
    rows = table_for(tree, 9)
    grow(tree, rows, torch.zeros(0, dtype=torch.int32), spare_slot=SPARE)
    children = TopK(torch.tensor([tokens], dtype=torch.int32), torch.tensor([log_probs]))
    fill_verify_rows(tree, rows, children, spare_slot=SPARE)
    costs = tree.nodes.costs.tolist()
    return {tree.nodes.tokens[node].item(): cost for node, cost in enumerate(costs) if node and cost < math.inf}


def test_guesses_that_are_impossible_or_not_numbers_are_left_out() -> None:
    tree = planted(committed=3, shape=Shape(verify_width=8, draft_width=1, num_children=4))
    assert children_of(tree, [5, 6, 7, 8], [1e-7, -0.5, math.nan, -math.inf]) == {5: 0.0, 6: 0.5}


def test_a_child_that_a_chain_has_brought_already_keeps_its_cost() -> None:
    tree = planted(shape=Shape(verify_width=4, draft_width=1, num_children=2))
    add_lookup_chain(tree, torch.tensor([0, 1, 7, 0, 1], dtype=torch.int32), chain_costs([[-0.25] * 3] * 4))
    costs = children_of(tree, [7, 8], [-0.125, -0.375])
    assert costs == {7: 0.25, 8: 0.375, 0: 0.5}, "one place is left for the chain's second token"


def test_where_costs_tie_the_shallower_stays() -> None:
    tree = planted(shape=Shape(verify_width=4, draft_width=1, num_children=3))
    add_lookup_chain(tree, torch.tensor([0, 1, 7, 0, 1], dtype=torch.int32), chain_costs([[0.0, -0.5, 0.0]] * 4))
    assert children_of(tree, [8, 9, 5], [-0.5, -0.5, -0.5]) == {7: 0.0, 8: 0.5, 9: 0.5}


def test_where_cost_and_depth_tie_the_earlier_stays() -> None:
    tree = planted(shape=Shape(verify_width=2, draft_width=1, num_children=1))
    add_lookup_chain(tree, torch.tensor([0, 1, 7, 0, 1], dtype=torch.int32), chain_costs([[-0.5]] * 4))
    assert children_of(tree, [8], [-0.5]) == {7: 0.5}


def test_the_draft_reads_its_own_ids_and_the_target_its_own() -> None:
    tree = planted(root=17, num_missing=1, shape=Shape(verify_width=4, draft_width=2, num_children=1))
    rows = table_for(tree, 3)
    target_rows = table_for(tree, 4)
    draft_ids = torch.full((VOCAB,), POISON, dtype=torch.int32)
    draft_ids[[17, 18, 30]] = torch.tensor([3, 4, 5], dtype=torch.int32)
    text_P = torch.tensor([POISON, POISON, POISON, 18], dtype=torch.int32)
    grow(tree, rows, text_P, draft_ids=draft_ids, spare_slot=SPARE)
    assert rows.token_ids.tolist() == [4, 3, 0]
    assert rows.slots.tolist() == [3, 4, SPARE]
    children = TopK(torch.tensor([[30], [-1]], dtype=torch.int32), torch.tensor([[-0.5], [-math.inf]]))
    grow(tree, rows, text_P, children, draft_ids=draft_ids, spare_slot=SPARE)
    assert rows.token_ids[0] == 5
    fill_verify_rows(tree, target_rows, spare_slot=SPARE)
    assert target_rows.token_ids[:2].tolist() == [17, 30]


def test_a_total_that_is_not_a_number_is_seen_on_the_host() -> None:
    tree = planted(committed=0, shape=Shape(verify_width=2, draft_width=1, num_children=1))
    sampled = Sampled(torch.tensor([3, 4], dtype=torch.int32), torch.tensor([math.nan, 1.0]), torch.zeros(2))
    walk_on_device(tree, sampled)
    outcome = read_outcome(tree.outcome)
    assert [math.isnan(value) for value in (*outcome.bests, *outcome.margins)] == [True, True]


def test_a_full_text_is_not_written_past_its_end() -> None:
    tree = planted(committed=3, shape=Shape(verify_width=1, draft_width=1, num_children=1))
    text_P = torch.zeros(6, dtype=torch.int32)
    walk_on_device(tree, Sampled(torch.tensor([3], dtype=torch.int32), torch.ones(1), torch.zeros(1)), text_P[:4])
    assert text_P.tolist() == [0] * 6
