"""The reference gives a row the same bits however many threads share the work."""

from collections.abc import Iterator

import pytest
import torch

from forerun.backends.torch.backend import REFERENCE


@pytest.fixture(params=[1, 3, 4])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(8, 8960), (5, 14336), (7, 14336)])
def test_a_row_of_the_gated_mlp_is_the_same_alone(
    num_threads: int, dtype: torch.dtype, num_rows: int, size: int
) -> None:
    gate_up = torch.randn(num_rows, 2 * size, generator=torch.Generator().manual_seed(1)).to(dtype)
    together = REFERENCE.ops.silu_mul(gate_up)
    alone = [REFERENCE.ops.silu_mul(gate_up[row : row + 1]) for row in range(num_rows)]
    assert torch.equal(together, torch.cat(alone))
