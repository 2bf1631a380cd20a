"""Queries, keys and values by Triton's interpreter, against the reference's norm and rotation in float64.

Legend: T rows, P positions, S slots, K key/value heads, N heads, D head size.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.torch.reference_ops import pack_norm, rotate
from forerun.core.model_spec import ModelSpec, RopeSpec, WeightFormat
from forerun.model.rope import rope_table
from forerun.model.weights import Weight
from tests.backends.gpu.linears import (
    DTYPES,
    FORMATS,
    MOST_ROWS,
    norm_of,
    pack_split,
    poisoned,
    product_of,
    random_rows,
    random_weight,
    workspace_of,
)

NUM_SLOTS = 64
NUM_POSITIONS = 50
HIDDEN = 128
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
SPEC = ModelSpec(
    family="llama", num_layers=1, hidden_size=HIDDEN, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=64,
    vocab_size=32, max_positions=NUM_POSITIONS, norm_eps=1e-2,
)  # fmt: skip


class Case:
    """One layer's weights, and rows that lie in slots and at positions out of order."""

    def __init__(self, spec: ModelSpec, weight_format: WeightFormat, dtype: torch.dtype, *, has_norms: bool = False):
        num_out = spec.q_size + 2 * spec.kv_size
        self.spec = spec
        self.dtype = dtype
        self.weight: Weight = random_weight(num_out, HIDDEN, weight_format, dtype)
        self.bias_O = random_rows(num_out, torch.float32, num_rows=1, seed=3)[0]
        self.packed: DeviceLinear = pack_split(
            self.weight, self.bias_O, compute=dtype, num_splits=2, head_dim=spec.head_dim,
            block_in=None if weight_format == "int4" else 32,
        )  # fmt: skip
        self.h = random_rows(HIDDEN, dtype)
        self.cos_sin_P2D = rope_table(RopeSpec(), spec.head_dim, NUM_POSITIONS, dtype=torch.float32, device="cpu")
        norms = random_rows(spec.head_dim, torch.float32, num_rows=2, seed=4)
        self.head_norms = (norms[0], norms[1]) if has_norms else None
        self.slots = torch.randperm(NUM_SLOTS, generator=torch.Generator().manual_seed(6))[:MOST_ROWS].int()
        self.positions = (torch.arange(MOST_ROWS) * 7 % NUM_POSITIONS).int()

    def run(self, num_rows: int, first_row: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values of rows first_row..; whatever is not theirs must stay poisoned."""
        spec = self.spec
        cache_shape = (2, NUM_SLOTS, self.spec.num_kv_heads, self.spec.head_dim)
        rows = RowTable(max_rows=MOST_ROWS, max_tree_slots=1, num_sublayers=1, device="cpu")
        slots = self.slots[first_row:]
        rows.slots[: len(slots)] = slots
        rows.positions[: len(slots)] = self.positions[first_row:]
        q = poisoned(MOST_ROWS, spec.q_size, dtype=self.dtype)
        keys_SKD, values_SKD = poisoned(*cache_shape).to(self.dtype)
        norm, _ = norm_of(scale=0.5, size=HIDDEN)
        norm = replace(norm, squares=torch.nn.functional.pad(norm.squares[:, first_row:], (0, first_row)))
        qkv(
            self.h[first_row:], self.packed, q, keys_SKD, values_SKD, self.cos_sin_P2D, rows,
            num_rows=num_rows, spec=spec, head_norms=self.head_norms, query_scales_P=None,
            norm=norm, workspace=workspace_of(self.packed), overlaps=False,
        )  # fmt: skip
        used = slots[:num_rows].long()
        unused = torch.ones(NUM_SLOTS, dtype=torch.bool).index_fill(0, used, False)
        assert q[num_rows:].isnan().all()
        assert keys_SKD[unused].isnan().all()
        assert values_SKD[unused].isnan().all()
        return q[:num_rows], keys_SKD[used], values_SKD[used]

    def expected(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """By the reference's ops, in float64."""
        spec = self.spec
        _, factors_T1 = norm_of(scale=0.5, size=HIDDEN)
        sums = (product_of(self.h, self.weight) * factors_T1 + self.bias_O)[:num_rows]
        q_TND, k_TND, values_TND = sums.view(num_rows, -1, spec.head_dim).split(
            [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], 1
        )
        if self.head_norms is not None:
            q_TND, k_TND = (
                pack_norm(weight_D.double(), spec.norm_eps)(heads_TND)
                for weight_D, heads_TND in zip(self.head_norms, (q_TND, k_TND), strict=True)
            )
        cos_T1D, sin_T1D = self.cos_sin_P2D[self.positions[:num_rows].long()].double().split(1, 1)
        return rotate(q_TND, cos_T1D, sin_T1D).flatten(1), rotate(k_TND, cos_T1D, sin_T1D), values_TND


def assert_is_expected(case: Case, num_rows: int) -> None:
    for found, expected in zip(case.run(num_rows), case.expected(num_rows), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[case.dtype], atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_heads_are_rotated_and_keys_and_values_cached(weight_format: WeightFormat, dtype: torch.dtype) -> None:
    assert_is_expected(Case(SPEC, weight_format, dtype), 3)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_query_and_key_heads_have_their_norms(head_dim: int) -> None:
    spec = replace(SPEC, num_heads=2, head_dim=head_dim)
    assert_is_expected(Case(spec, "plain", torch.float32, has_norms=True), 18)


@pytest.mark.parametrize("weight_format", ["plain", "int4"])
def test_a_row_has_the_same_bits_in_any_company(weight_format: WeightFormat) -> None:
    case = Case(replace(SPEC, num_heads=1), weight_format, torch.bfloat16, has_norms=True)
    whole = case.run(MOST_ROWS)
    for num_rows in (5, 17):
        for found, expected in zip(case.run(num_rows), whole, strict=True):
            assert torch.equal(found, expected[:num_rows]), num_rows
    for row in (4, 37):  # of the first in a tile: the interpreter multiplies others in another order
        for found, expected in zip(case.run(1, first_row=row), whole, strict=True):
            assert torch.equal(found[0], expected[row]), row
