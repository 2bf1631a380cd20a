"""The test that the exact mode begins with finds rows that depend on others, and nothing else."""

import pytest
import torch

from forerun.backends.torch.backend import FUSED
from forerun.model.backend import ModelBackend
from forerun.model.self_test import find_bit_fault, some_layers
from tests.model.kernel_sets import EXACT_SETS
from tests.model.test_exact_bits import SHAPES, build


@pytest.mark.parametrize("kernels", EXACT_SETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_kernels_pass(kernels: ModelBackend, shape: str, dtype: torch.dtype) -> None:
    runner = build(shape, dtype, kernels)
    num_threads = torch.get_num_threads()
    assert find_bit_fault(runner) is None
    assert torch.get_num_threads() == num_threads
    assert runner.cache.committed_len == runner.cache.num_tree == 0


def test_kernels_whose_rows_depend_on_each_other_are_found() -> None:
    fault = find_bit_fault(build("wide", torch.float32, FUSED))
    assert fault is not None
    assert "rows differ in a prefill" in fault
    assert "first seen after layer 0" in fault, "of two layers, both are looked at"


def test_the_layers_looked_at_are_few_and_the_last_is_one_of_them() -> None:
    assert [some_layers(num_layers) for num_layers in (1, 2, 3, 4, 30)] == [
        (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (6, 14, 21, 29)
    ]  # fmt: skip
