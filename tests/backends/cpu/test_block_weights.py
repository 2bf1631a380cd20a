"""Models of ggml's blocks on the native executor: tables, several formats one under another, and their bits."""

import random
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import REFERENCE
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import ForwardInput
from forerun.model.gguf_block_types import BLOCKS, BlockType
from forerun.model.gguf_blocks import dequantise_blocks
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight, Table, Weight
from tests.backends.cpu.test_executor import random_pass
from tests.backends.diff import diff_buffers
from tests.blocks import random_blocks
from tests.tiny import plain_spec

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))

SPEC: Final = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 50, "num_heads": 4, "num_kv_heads": 2}
CAPACITY: Final = 64


class BlockSource:
    """Random blocks, which differ from layer to layer; q, k and v, and gate and up, of `types` in turn.

    Args:
        table: the type of the embedding, or None for float32.
    """

    def __init__(self, spec: ModelSpec, types: tuple[BlockType, ...], table: BlockType | None) -> None:
        self._spec = spec
        self._types = types
        self._table: Table = DenseWeight(values_OI=torch.randn(spec.vocab_size, spec.hidden_size))
        if table is not None:
            self._table = self._blocks(table, spec.vocab_size, 0)

    def table(self) -> Table:
        return self._table

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        spec = self._spec
        seed = sum(map(ord, name))
        if name == "head" and spec.tied_embeddings:
            return self._table, None
        sizes = {
            "qkv": (spec.q_size, spec.kv_size, spec.kv_size),
            "gate_up": (spec.intermediate_size, spec.intermediate_size),
            "head": (spec.vocab_size,),
        }.get(name.rpartition(".")[2], (spec.hidden_size,))
        kinds = [self._types[idx % len(self._types)] for idx in range(len(sizes))]
        bias_O = torch.randn(sum(sizes)) if "qkv" in name and spec.qkv_bias else None
        if len(set(kinds)) == 1:
            return self._blocks(kinds[0], sum(sizes), seed), bias_O
        parts = tuple(self._blocks(kind, size, seed) for kind, size in zip(kinds, sizes, strict=True))
        return StackedWeight(parts=parts), bias_O

    def vector(self, name: str) -> Tensor:
        size = self._spec.head_dim if name[-6:] in ("q_norm", "k_norm") else self._spec.hidden_size
        return torch.rand(size) / 100 + 0.005  # so that products with scales of about 1 do not saturate the softmax

    def _blocks(self, kind: BlockType, num_out: int, seed: int) -> BlockWeight:
        blocks_in_row = self._spec.hidden_size // BLOCKS[kind].num_elements
        return BlockWeight(
            blocks_OB=random_blocks(kind, seed=seed, num_out=num_out, blocks_in_row=blocks_in_row), block_type=kind
        )


def spec_of(*, is_tied: bool, qkv_bias: bool = False) -> ModelSpec:
    spec = plain_spec(**SPEC, head_dim=64, tied_embeddings=is_tied, qkv_bias=qkv_bias)
    assert (spec.hidden_size, spec.q_size) == (256, 256), "every linear of so many inputs"
    return spec


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("table", [None, "Q8_0"])
@pytest.mark.parametrize("types", [("Q4_1",), ("Q4_K", "Q4_K", "Q6_K"), ("Q5_0", "Q8_0")], ids="+".join)
def test_every_buffer_is_that_of_the_dequantised_model(
    types: tuple[BlockType, ...], table: BlockType | None, is_tied: bool
) -> None:
    spec = spec_of(is_tied=is_tied, qkv_bias=True)
    with torch.inference_mode():
        caches = [TreeCache(spec, CAPACITY, dtype=torch.float32, device="cpu") for _ in range(2)]
        executors = []
        for backend, cache in zip((NATIVE, REFERENCE), caches, strict=True):
            torch.manual_seed(3)
            executors.append(backend.executor(spec, BlockSource(spec, types, table), cache))
        for seed in range(4):
            inputs = random_pass(random.Random(seed), spec, 0)
            for found in diff_buffers(executors[0], caches[0], executors[1], caches[1], inputs):
                assert found.relative <= 2e-4, found  # inputs of products are rounded to 16 bits


@pytest.mark.parametrize("table", BLOCKS)
def test_an_embedding_in_the_heads_memory_is_that_of_the_dequantised_model_bit_for_bit(table: BlockType) -> None:
    spec = spec_of(is_tied=True)
    source = BlockSource(spec, ("Q4_1",), table)
    token_ids = list(range(spec.vocab_size))
    held = source.table()
    assert isinstance(held, BlockWeight)
    expected = dequantise_blocks(held.blocks_OB, table)
    cache = TreeCache(spec, CAPACITY, dtype=torch.float32, device="cpu")
    found: list[Tensor] = []
    inputs = ForwardInput(
        token_ids=token_ids, positions=token_ids, first_slot=0, prefix_len=0, ancestry=None, num_logit_rows=1
    )
    with torch.inference_mode():
        executor = NATIVE.executor(spec, source, cache)
        executor.run(inputs, lambda op, buffer: found.append(buffer.clone()) if op.kind == "embed" else None)
    assert torch.equal(found[0], expected)
    assert torch.equal(executor.embed(torch.tensor([[3, 49], [0, 3]])), expected[torch.tensor([[3, 49], [0, 3]])])
    output = executor.output()
    rows = torch.randn(3, spec.hidden_size)
    assert output is not None, "a draft multiplies by these blocks too"
    scores = rows @ expected.T
    assert (output(rows) - scores).abs().max() <= 0.03 * scores.abs().max()  # inputs of 8 bits


@pytest.mark.parametrize("types", [("Q4_1",), ("Q4_K", "Q6_K")], ids="+".join)
def test_fusing_and_threads_change_no_bit_also_where_rows_are_many(types: tuple[BlockType, ...]) -> None:
    """400 rows of 256 inputs are prepared by all threads together, each part of a weight after the other."""
    spec = spec_of(is_tied=True)
    results = []
    before = torch.get_num_threads()
    for num_rows in (3, 400):
        results.clear()
        for threads, observe in ((1, None), (3, None), (3, lambda op, buffer: None)):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            runner = Runner(
                spec, BlockSource(spec, types, "Q8_0"), backend=NATIVE, capacity=512, dtype=torch.float32, device="cpu"
            )
            token_ids = [idx % spec.vocab_size for idx in range(num_rows)]
            runner.cache.reserve(num_rows)
            inputs = ForwardInput(
                token_ids=token_ids, positions=list(range(num_rows)), first_slot=0, prefix_len=0, ancestry=None,
                num_logit_rows=3,
            )  # fmt: skip
            results.append(runner.forward(inputs, observe).logits)
        torch.set_num_threads(before)
        assert torch.equal(results[0], results[1]), num_rows
        assert torch.equal(results[0], results[2]), num_rows
