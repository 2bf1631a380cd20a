"""Norm, gate and rope of the native kernels against float64, on odd shapes."""

import pytest
import torch
from torch import Tensor

from forerun.core.model_spec import RopeSpec
from forerun.model.cache_rows import decode_rows, encode_rows
from forerun.model.rope import rope_table
from tests.backends.cpu import ops

pytestmark = pytest.mark.usefixtures("tier")
EPS = 1e-5
NAN = float("nan")


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def test_a_gate_far_from_zero_is_shut_or_open_and_nan_stays_nan() -> None:
    gates = torch.tensor([[-200.0, -88.0, 88.0, 200.0, 3e38, float("nan")]])
    y = ops.silu_mul(torch.cat((gates, torch.ones_like(gates)), 1))[0]
    torch.testing.assert_close(y[:5], torch.tensor([0.0, 0.0, 88.0, 200.0, 3e38]))
    assert y[5].isnan()


@pytest.mark.parametrize(("element", "expected"), [(NAN, NAN), (float("-inf"), NAN), (0.0, 0.0), (1e-38, 0.0)])
def test_a_row_in_8_bits_is_nan_with_a_fault_and_zeros_without_a_size(element: float, expected: float) -> None:
    qkv = torch.zeros(1, 3 * 20)
    qkv[0, 20 + 7] = qkv[0, 40 + 19] = element
    turns = rope_table(None, 20, 1, dtype=torch.float32, device="cpu")
    codes = torch.full((2, 1, 1, 24), 5, dtype=torch.int8)
    ops.rope_append(qkv, turns, [0], *codes, first_slot=0, norms=None, eps=EPS)
    for stored in (codes[:, 0], encode_rows(qkv[:, 20:].view(2, 1, 20))):
        found = decode_rows(stored, torch.float32)
        torch.testing.assert_close(found, torch.full_like(found, expected), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 2), (3, 1, 6), (4, 2, 20), (2, 2, 80)])
def test_rope_turns_queries_and_keys_and_fills_only_the_rows_slots(
    dtype: torch.dtype, has_norms: bool, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    positions = [4, 9, 0, 9, 5]
    first_slot = 2
    qkv = random_tensor(5, (num_heads + 2 * num_kv_heads) * head_dim, seed=4)
    spec = RopeSpec(theta=100.0)
    turns = rope_table(spec, head_dim, 10, dtype=torch.float32, device="cpu")
    weights = (random_tensor(head_dim, seed=5), random_tensor(head_dim, seed=6)) if has_norms else None
    before = random_tensor(2, 9, num_kv_heads, head_dim, seed=7).to(dtype)
    keys, values = before.clone()
    q = ops.rope_append(qkv, turns, positions, keys, values, first_slot=first_slot, norms=weights, eps=EPS)

    heads = qkv.view(5, -1, head_dim).double().split([num_heads, num_kv_heads, num_kv_heads], 1)
    cosines, sines = turns[positions].double()[:, None].unbind(2)
    turned = [
        x * cosines + x.roll(head_dim // 2, -1) * sines
        for x in (heads[:2] if weights is None else map(normed, heads[:2], weights))
    ]
    torch.testing.assert_close(q.double(), turned[0], atol=1e-6, rtol=1e-5)
    rounded = encode_rows(torch.stack((keys, values)).float())  # in another cache, of int8
    codes = torch.zeros_like(rounded)
    if dtype == torch.float32:
        ops.rope_append(qkv, turns, positions, *codes, first_slot=first_slot, norms=weights, eps=EPS)
        assert torch.equal(codes[:, first_slot : first_slot + 5], rounded[:, first_slot : first_slot + 5])
    stored = slice(first_slot, first_slot + 5)
    rtol = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(keys[stored].double(), turned[1], atol=1e-6, rtol=rtol)
    assert torch.equal(values[stored], heads[2].to(dtype))
    for cache, old in zip((keys, values), before, strict=True):
        assert torch.equal(cache[:first_slot], old[:first_slot])
        assert torch.equal(cache[first_slot + 5 :], old[first_slot + 5 :])
