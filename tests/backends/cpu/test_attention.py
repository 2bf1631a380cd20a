"""Native attention: close to float64, and a row's bits those of the same row in any other company.

Legend: T rows, Q query heads, K key/value heads, S slots, W tree slots, D head size.
"""

import random

import pytest
import torch
from torch import Tensor

from forerun.model.cache_rows import decode_rows, encode_rows
from forerun.speculation.tree import ancestry_matrix
from tests.backends.cpu import ops
from tests.tiny import poison_of

pytestmark = pytest.mark.usefixtures("tier")
MAX_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.int8: 3e-4}  # queries of the last have 16 bits
DTYPES = pytest.mark.parametrize("dtype", MAX_ERROR, ids=str)
PREFIXES = [0, 1, 5, 31, 64, 100, 480, 511, 512, 513, 700, 1030]


def random_ancestry(rng: random.Random, num_nodes: int) -> Tensor:
    """[N, N], siblings and their children standing between a node and its ancestors."""
    parents = [-1, *(rng.choice([node - 1, rng.randrange(node)]) for node in range(1, num_nodes))]
    return torch.from_numpy(ancestry_matrix(parents))


def stored(rows_D: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows as a cache of this type stores them."""
    return encode_rows(rows_D) if dtype == torch.int8 else rows_D.to(dtype)


def wide(stored_D: Tensor) -> Tensor:
    return decode_rows(stored_D, torch.float64) if stored_D.dtype == torch.int8 else stored_D.double()


class Case:
    """The last rows of a random tree over a random prefix; the slots behind hold NaN."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.rng = rng
        self.prefix_len = rng.choice(PREFIXES)
        self.num_rows = rng.choice([1, 2, 7, 16, 17, 40])
        num_earlier = rng.choice([0, 3, 90])
        num_kv_heads = rng.choice([1, 2, 3])
        group = rng.choice([1, 2, 4, 5, 7, 8])
        head_dim = rng.choice([2, 6, 20, 32, 64, 80, 96, 128])
        self.ancestry_TW = random_ancestry(rng, self.num_rows + num_earlier)[num_earlier:]
        num_slots = self.prefix_len + self.num_rows + num_earlier
        self.q_TQD = torch.randn(self.num_rows, num_kv_heads * group, head_dim, generator=generator)
        self.dtype = dtype
        storage = stored(torch.randn(2, num_slots + 20, num_kv_heads, head_dim, generator=generator), dtype)
        storage[:, num_slots:] = poison_of(dtype)
        self.keys_SKD, self.values_SKD = storage.unbind()

    def tree(self, rows_per_call: int = 16) -> Tensor:
        return ops.tree_attention(
            self.q_TQD, self.keys_SKD, self.values_SKD,
            prefix_len=self.prefix_len, ancestry_TW=self.ancestry_TW, rows_per_call=rows_per_call,
        )  # fmt: skip

    def causal(self, rows_per_call: int = 16) -> Tensor:
        """The rows as the text's last, in the slots from the prefix on."""
        return ops.tree_attention(
            self.q_TQD, self.keys_SKD, self.values_SKD,
            prefix_len=self.prefix_len, ancestry_TW=None, rows_per_call=rows_per_call,
        )  # fmt: skip

    def slots_of(self, row: int) -> Tensor:
        """The slots that a row of the tree sees, in order."""
        return torch.cat((torch.arange(self.prefix_len), self.prefix_len + self.ancestry_TW[row].nonzero()[:, 0]))

    def dense(self, row: int, slots: Tensor) -> Tensor:
        """softmax(q k / sqrt(D)) v of one row in float64; queries meet bfloat16 keys as bfloat16."""
        q_QD = self.q_TQD[row].to(torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32).double()
        group = len(q_QD) // self.keys_SKD.shape[1]
        k_SQD, v_SQD = (wide(x[slots]).repeat_interleave(group, 1) for x in (self.keys_SKD, self.values_SKD))
        weights_SQ = (torch.einsum("qd,sqd->sq", q_QD, k_SQD) / q_QD.shape[1] ** 0.5).softmax(0)
        return torch.einsum("sq,sqd->qd", weights_SQ, v_SQD).flatten()


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_attention_equals_a_dense_softmax(dtype: torch.dtype, seed: int) -> None:
    case = Case(seed, dtype)
    rows = range(case.num_rows)
    expected_tree = torch.stack([case.dense(row, case.slots_of(row)) for row in rows])
    expected_text = torch.stack([case.dense(row, torch.arange(case.prefix_len + row + 1)) for row in rows])
    most = MAX_ERROR[dtype]
    torch.testing.assert_close(case.tree().double(), expected_tree, atol=most, rtol=most)
    torch.testing.assert_close(case.causal().double(), expected_text, atol=most, rtol=most)


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_a_row_has_the_same_bits_alone_with_all_else_poisoned(dtype: torch.dtype, seed: int) -> None:
    case = Case(seed, dtype)
    together = case.tree()
    for row in case.rng.sample(range(case.num_rows), min(case.num_rows, 6)):
        keys = torch.full_like(case.keys_SKD, poison_of(dtype))
        values = torch.full_like(case.values_SKD, poison_of(dtype))
        slots = case.slots_of(row)
        keys[slots] = case.keys_SKD[slots]
        values[slots] = case.values_SKD[slots]
        alone = ops.tree_attention(
            case.q_TQD[row : row + 1].contiguous(), keys, values,
            prefix_len=case.prefix_len, ancestry_TW=case.ancestry_TW[row : row + 1],
        )  # fmt: skip
        assert torch.equal(alone[0], together[row])


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_a_row_of_a_tree_has_the_bits_of_its_path_as_a_text(dtype: torch.dtype, seed: int) -> None:
    case = Case(seed, dtype)
    together = case.tree()
    for row in case.rng.sample(range(case.num_rows), min(case.num_rows, 4)):
        slots = case.slots_of(row)
        keys = case.keys_SKD[slots]
        values = case.values_SKD[slots]
        own = case.q_TQD[row : row + 1]
        for num_rows in {1, min(len(slots), 2), min(len(slots), 37)}:
            others = torch.randn(num_rows - 1, *own.shape[1:])
            text = ops.tree_attention(
                torch.cat((others, own)), keys, values, prefix_len=len(slots) - num_rows, ancestry_TW=None
            )
            assert torch.equal(text[-1], together[row])


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_no_bit_depends_on_how_rows_are_shared_out(dtype: torch.dtype, seed: int) -> None:
    case = Case(seed, dtype)
    tree = case.tree()
    causal = case.causal()
    for rows_per_call in (1, 2, 5, 11):
        assert torch.equal(case.tree(rows_per_call), tree)
        assert torch.equal(case.causal(rows_per_call), causal)


@DTYPES
@pytest.mark.parametrize("place", [0, 17, 511, 512, 601, 602])
@pytest.mark.parametrize("is_key", [True, False])
def test_nan_that_a_row_sees_shows(dtype: torch.dtype, place: int, is_key: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 605, 1, 20, generator=generator)
    keys, values = stored(rows, dtype)
    (keys if is_key else values)[place] = poison_of(dtype)
    q = torch.randn(1, 3, 20, generator=generator)
    ancestry = torch.tensor([[True, False, True]])
    mixed = ops.tree_attention(q, keys, values, prefix_len=600, ancestry_TW=ancestry)
    assert mixed.isnan().all() if place != 601 else not mixed.isnan().any()


@DTYPES
def test_large_scores_neither_overflow_nor_lose_the_leader(dtype: torch.dtype) -> None:
    rows = torch.zeros(2, 1400, 1, 2)
    rows[0, 1300] = 256.0
    rows[1, 1300] = 3.0
    keys, values = stored(rows, dtype)
    q = torch.full((1, 1, 2), 256.0)
    mixed = ops.tree_attention(q, keys, values, prefix_len=1399, ancestry_TW=None)
    torch.testing.assert_close(mixed, torch.full((1, 2), 3.0), atol=0, rtol=3e-7)
