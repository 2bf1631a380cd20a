"""Token ids to the residual stream."""

import pytest
import torch

from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.linear_buffers import NextNorm

POISON = -7.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [64, 200])
def test_rows_are_looked_up_and_prepared_for_the_first_linear(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table_VH = torch.randn(50, size, generator=generator).to(dtype)
    token_ids_T = torch.tensor([49, 0, 7, 7, 1], dtype=torch.int32)
    scale = 1 / 64 if dtype == torch.float16 else 1.0
    next_norm = NextNorm(
        weight=torch.randn(size, generator=generator),
        h=torch.full((6, size), POISON, dtype=dtype),
        squares=torch.full((3, 6), POISON),
        scale=scale,
    )
    x = torch.full((6, size), POISON)
    embed(table_VH, token_ids_T, x, next_norm, scale=1.0, num_rows=5, overlaps=False)
    expected = table_VH[token_ids_T.long()].float()
    assert torch.equal(x[:5], expected)
    cut_off = 2**-7 if dtype == torch.bfloat16 else 0.0  # Triton's interpreter rounds to bfloat16 downwards
    h_TH = expected * next_norm.weight * scale
    torch.testing.assert_close(next_norm.h[:5], h_TH.to(dtype), rtol=cut_off, atol=0.0)
    torch.testing.assert_close(next_norm.squares[0, :5], expected.square().sum(1))
    assert torch.equal(next_norm.squares[0, 2], next_norm.squares[0, 3])
    for written in (x[5], next_norm.h[5], next_norm.squares[0, 5], next_norm.squares[1:]):
        assert written.eq(POISON).all()
