"""The tree cache under any order of calls, against two plain lists."""

import pytest
import torch
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.model.executor import CacheMove
from forerun.model.tree_cache import TreeCache
from tests.tiny import plain_spec

CAPACITY = 24


class CacheCalls(RuleBasedStateMachine):
    """Every row carries a number of its own; the lists say which number must be in which slot."""

    @initialize()
    def start(self) -> None:
        self.cache = TreeCache(plain_spec(), CAPACITY, dtype=torch.float64, device="cpu")
        self.committed: list[int] = []
        self.tree: list[int] = []
        self.num_rows = 0

    @rule(num_rows=strategies.integers(1, 9))
    def reserve_and_write(self, num_rows: int) -> None:
        fits = len(self.committed) + len(self.tree) + num_rows <= CAPACITY
        if not fits:
            with pytest.raises(AssertionError, match="exceed"):
                self.cache.reserve(num_rows)
            return
        first = self.cache.reserve(num_rows)
        assert first == len(self.committed) + len(self.tree)
        for slot in range(first, first + num_rows):
            self.num_rows += 1
            self.tree.append(self.num_rows)
            self.cache.keys_LSKD[:, slot] = self.num_rows
            self.cache.values_LSKD[:, slot] = -self.num_rows

    @precondition(lambda self: self.tree)
    @rule(data=strategies.data())
    def keep(self, data: strategies.DataObject) -> None:
        rows = data.draw(strategies.lists(strategies.integers(0, len(self.tree) - 1), unique=True))
        num_committed = data.draw(strategies.integers(0, len(rows)))
        self.cache.move(CacheMove(length=len(self.committed), rows=tuple(rows), num_committed=num_committed))
        kept = [self.tree[row] for row in rows]
        self.committed = [*self.committed, *kept[:num_committed]]
        self.tree = kept[num_committed:]
        self.poison()

    @rule(share=strategies.floats(0, 1))
    def truncate(self, share: float) -> None:
        length = round(share * len(self.committed))
        self.cache.truncate(length)
        self.committed = self.committed[:length]
        self.tree = []
        self.poison()

    def poison(self) -> None:
        end = len(self.committed) + len(self.tree)
        self.cache.keys_LSKD[:, end:] = self.cache.values_LSKD[:, end:] = float("nan")

    @invariant()
    def every_slot_holds_its_row(self) -> None:
        expected = torch.tensor([*self.committed, *self.tree], dtype=torch.float64)
        assert (self.cache.committed_len, self.cache.num_tree) == (len(self.committed), len(self.tree))
        for storage, sign in ((self.cache.keys_LSKD, 1), (self.cache.values_LSKD, -1)):
            rows_LE = storage[:, : len(expected)].flatten(2)
            assert (rows_LE == sign * expected[:, None]).all()


CacheCalls.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestCacheCalls = CacheCalls.TestCase
