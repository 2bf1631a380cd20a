"""The first and last weights of a model, which a draft head uses as well."""

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.cpu.backend import NATIVE
from forerun.model.backend import ModelBackend
from forerun.model.executor import ModelExecutor
from tests.model.kernel_sets import KERNEL_SETS
from tests.tiny import random_weights, tiny_runner, tiny_spec

CLOSE = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_lends_its_embedding_and_its_output(is_tied: bool, kernels: ModelBackend, dtype: torch.dtype) -> None:
    spec = tiny_spec(random.Random(1), tied_embeddings=is_tied, embedding_scale=3.0)
    weights: dict[str, Tensor] = random_weights(spec, torch.Generator().manual_seed(1), dtype=dtype)
    executor = tiny_runner(spec, weights, backend=kernels).executor
    assert isinstance(executor, ModelExecutor)
    ids = torch.tensor([[3, 0, 1], [spec.vocab_size - 1, 3, 2]])
    assert torch.equal(executor.embed(ids).to(dtype), weights["embedding.weight"][ids])
    output = executor.output()
    rows = torch.randn(4, spec.hidden_size)
    if output is None:
        assert kernels is NATIVE  # a draft multiplies in 8 bits
        return
    scores = output(rows)
    head = weights["embedding.weight" if is_tied else "head.weight"]
    expected = functional.linear(rows.to(dtype), head).float()
    assert scores.dtype == rows.dtype
    assert (scores - expected).abs().max() <= CLOSE * expected.abs().max()
