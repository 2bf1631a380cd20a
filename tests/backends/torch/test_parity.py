"""Every op of both twins against plain float64 arithmetic, on odd shapes and in every dtype."""

import random

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import FUSED, REFERENCE, TorchBackend
from forerun.model.weights import DenseWeight
from tests.backends.torch.ops import AttentionCase

# (dtype, atol, rtol)
TOLERANCES = pytest.mark.parametrize(
    ("dtype", "atol", "rtol"),
    [
        pytest.param(torch.float64, 1e-13, 1e-13, id="float64"),
        pytest.param(torch.float32, 1e-5, 1e-5, id="float32"),
        pytest.param(torch.bfloat16, 3e-2, 3e-2, id="bfloat16"),
    ],
)
KERNELS = pytest.mark.parametrize("kernels", [REFERENCE, FUSED], ids=lambda kernels: kernels.name)
NUM_ROWS = [1, 2, 7, 8, 9, 33]


def random_tensor(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype, atol: float, rtol: float) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=atol, rtol=rtol)


@TOLERANCES
@KERNELS
@pytest.mark.parametrize("is_causal", [False, True], ids=["tree", "causal"])
@pytest.mark.parametrize("seed", range(8))
def test_attention_equals_a_dense_mask(
    kernels: TorchBackend, dtype: torch.dtype, atol: float, rtol: float, is_causal: bool, seed: int
) -> None:
    rng = random.Random(seed)
    case = AttentionCase(
        rng,
        dtype=dtype,
        is_causal=is_causal,
        num_rows=rng.choice(NUM_ROWS),
        prefix_len=rng.choice([0, 1, 5, 31, 64, 100]),
        num_kv_heads=rng.choice([1, 2, 3]),
        group=rng.choice([1, 2, 3, 7]),
        head_dim=rng.choice([2, 6, 16, 20, 64]),
    )
    assert_close(case.attend(kernels), case.dense(), dtype, atol, rtol)


@TOLERANCES
@KERNELS
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("num_rows", [1, 9])
@pytest.mark.parametrize("shape", [(7, 33), (131, 65)])
def test_linear_equals_the_product(
    kernels: TorchBackend, dtype: torch.dtype, atol: float, rtol: float, has_bias: bool, has_residual: bool,
    num_rows: int, shape: tuple[int, int],
) -> None:  # fmt: skip
    num_out, num_in = shape
    weight = random_tensor(num_out, num_in, dtype=torch.float64, seed=1).mul(num_in**-0.5).to(dtype)
    bias = random_tensor(num_out, dtype=dtype, seed=2) if has_bias else None
    residual = random_tensor(num_rows, num_out, dtype=dtype, seed=3) if has_residual else None
    x = random_tensor(num_rows, num_in, dtype=dtype, seed=4)
    expected = x.double() @ weight.double().T
    for extra in (bias, residual):
        expected = expected if extra is None else expected + extra.double()
    before = None if residual is None else residual.clone()
    with torch.inference_mode():
        linear = kernels.ops.pack_linear(DenseWeight(values_OI=weight), bias)
        assert_close(linear(x, residual), expected, dtype, atol, rtol)
    assert residual is None or torch.equal(residual, before), "the residual was written to"


@TOLERANCES
@KERNELS
@pytest.mark.parametrize("shape", [(1, 5), (3, 64), (9, 33), (4, 3, 6)])
def test_norm_equals_its_formula(
    kernels: TorchBackend, dtype: torch.dtype, atol: float, rtol: float, shape: tuple[int, ...]
) -> None:
    for size in (1e-3, 1.0, 1e3):
        x = (random_tensor(*shape, dtype=torch.float64, seed=5) * size).to(dtype)
        weight = random_tensor(shape[-1], dtype=dtype, seed=6)
        wide = x.double()
        expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        assert_close(kernels.ops.pack_norm(weight, 1e-5)(x), expected, dtype, atol, rtol)


@TOLERANCES
@KERNELS
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 6), (9, 4, 64)])
def test_rotation_turns_pairs_by_their_angles(
    kernels: TorchBackend, dtype: torch.dtype, atol: float, rtol: float, shape: tuple[int, int, int]
) -> None:
    num_rows, _, head_dim = shape
    half = head_dim // 2
    x = random_tensor(*shape, dtype=dtype, seed=7)
    angles = random_tensor(num_rows, 1, half, dtype=torch.float64, seed=8)
    cos = angles.cos().to(dtype)
    sin = angles.sin().to(dtype)
    left = x[..., :half].double()
    right = x[..., half:].double()
    wide_cos = cos.double()
    wide_sin = sin.double()
    expected = torch.cat((left * wide_cos - right * wide_sin, right * wide_cos + left * wide_sin), -1)
    actual = kernels.ops.rotate(x, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    assert_close(actual, expected, dtype, atol, rtol)
