"""Experts and attention sinks: a row has the same bits alone and among others, on all kernels that promise it."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.runner import Runner
from forerun.model.weights import WHOLE, BlockWeight, Part, Weight
from tests.backends.torch.ops import random_parents
from tests.dense_reference import dense_logits
from tests.marks import in_turn
from tests.tiny import CAPACITY, Weights, random_weights, tree_logits
from tests.tiny_families import family_spec

NUM_THREADS = (1, 3)
needs_native = pytest.mark.skipif(fault() is not None, reason=str(fault()))
KERNELS = [
    pytest.param(REFERENCE, torch.float64, "plain"),
    pytest.param(REFERENCE, torch.float32, "plain"),
    pytest.param(REFERENCE, torch.bfloat16, "plain"),
    *(
        pytest.param(NATIVE, dtype, weight_format, marks=needs_native)
        for dtype, weight_format in (
            (torch.float32, "plain"), (torch.bfloat16, "plain"), (torch.bfloat16, "int8"), (torch.bfloat16, "int4"),
            (torch.float32, "MXFP4"), (torch.bfloat16, "MXFP4"),
        )
    ),
]  # fmt: skip


class InBlocks:
    """Weights whose experts have random blocks of MXFP4."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self._others = LoadedWeights(weights)
        self._dtype = dtype
        self.table = self._others.table
        self.vector = self._others.vector

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        weight, bias_O = self._others.linear(name, part)
        if ".experts." not in name:
            return weight, bias_O
        num_out, num_in = weight.shape
        generator = torch.Generator().manual_seed(num_out + len(name))
        blocks = torch.randint(0, 256, (num_out, num_in // 32, 17), generator=generator).to(torch.uint8)
        blocks[:, :, 0] = torch.randint(120, 123, blocks.shape[:2], generator=generator).to(torch.uint8)
        return BlockWeight(blocks_OB=blocks.flatten(1), block_type="MXFP4", dtype=self._dtype), bias_O


@pytest.fixture(params=NUM_THREADS)
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def model(seed: int) -> tuple[ModelSpec, Weights]:
    family = ("gpt_oss", "qwen3_moe")[seed % 2]
    spec = family_spec(random.Random(seed), family, hidden_size=32, intermediate_size=32 + 32 * (seed % 2))
    return spec, random_weights(spec, torch.Generator().manual_seed(seed))


def runner_of(seed: int, kernels: Backend, dtype: torch.dtype, weight_format: WeightFormat | str) -> Runner:
    spec, weights = model(seed)
    own = {name: weight.to(dtype) for name, weight in weights.items()}
    source = InBlocks(own, dtype) if weight_format == "MXFP4" else LoadedWeights(own, weight_format)  # type: ignore[arg-type]
    return Runner(spec, source, backend=kernels, capacity=CAPACITY, dtype=dtype, device="cpu")


@pytest.mark.parametrize(("seed", "num_threads"), in_turn(range(2), NUM_THREADS), indirect=["num_threads"])
@pytest.mark.parametrize(("kernels", "dtype", "weight_format"), KERNELS)
def test_a_row_has_the_same_bits_alone_and_among_others(
    kernels: Backend, dtype: torch.dtype, weight_format: str, seed: int, num_threads: int
) -> None:
    rng = random.Random(seed)
    together, alone = (runner_of(seed, kernels, dtype, weight_format) for _ in range(2))
    text = [rng.randrange(together.spec.vocab_size) for _ in range(70)]  # more than 16 rows to an expert
    one_by_one = torch.cat([alone.extend([token], num_logit_rows=1) for token in text])
    assert torch.equal(together.extend(text, num_logit_rows=len(text)), one_by_one)
    parents = random_parents(rng, 9)
    token_ids = [rng.randrange(together.spec.vocab_size) for _ in parents]
    logits = tree_logits(together, token_ids, parents)
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        alone.sync(text)
        expected = [alone.extend([token_ids[place]], num_logit_rows=1) for place in path][-1]
        assert torch.equal(logits[node], expected[0]), node


@needs_native
@pytest.mark.parametrize("seed", range(4))
def test_native_logits_are_those_of_the_dense_formula(seed: int, num_threads: int) -> None:
    spec, weights = model(seed)
    runner = runner_of(seed, NATIVE, torch.float32, "plain")
    rng = random.Random(seed)
    text = [rng.randrange(spec.vocab_size) for _ in range(40)]
    logits = runner.extend(text, num_logit_rows=40)
    torch.testing.assert_close(logits.double(), dense_logits(spec, weights, text), atol=2e-4, rtol=0)
