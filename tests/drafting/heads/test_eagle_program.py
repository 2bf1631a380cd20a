"""EAGLE-3 heads whose layers the native kernels run: their outputs against torch's in float64."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.backends.cpu import executor as native_executor
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.layouts import FORMATS
from forerun.backends.torch.backend import REFERENCE
from forerun.core.threads import inference
from forerun.drafting.heads import eagle_program
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import ProgramEagleExecutor, eagle_executor
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.layer import HeadWeights, embedding, plain_linear
from forerun.model.executor import ForwardInput, ForwardOutput
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import DenseWeight, Weight
from tests.drafting.heads.random_heads import eagle_tensors, random_eagle
from tests.tiny import tiny_spec

NUM_SLOTS = 1300
CLOSE = 1e-4  # of float32's sums and those of float64, in heads of up to three layers


def executor_of(
    spec: EagleSpec, tensors: dict[str, Tensor], make: Callable[..., HeadExecutor], dtype: torch.dtype
) -> HeadExecutor:
    """The head with a cache of its own and plain weights."""
    typed = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    weights = HeadWeights(typed, plain_linear)
    cache = TreeCache(spec.body, NUM_SLOTS, dtype=dtype, device="cpu", move_slots=NATIVE.move_slots)
    cache.reserve(NUM_SLOTS)
    with inference():
        table = embedding(typed["embed_tokens.weight"])
        output = plain_linear(typed["lm_head.weight"])
        return make(spec, weights, table, output, cache)


native = partial(eagle_executor, backend=NATIVE)
in_torch = partial(eagle_executor, backend=REFERENCE)


def passes(executor: HeadExecutor, vocab_size: int, seed: int) -> list[ForwardOutput]:
    """A text in two passes, some of whose rows are then unknown, a tree behind it, and rows behind it in its place."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    num_text = rng.randint(2, 90)
    num_nodes = rng.randint(1, 9)
    if seed % 4 == 3:
        num_text = rng.randint(520, 1200)  # more than a chunk of attention

    def run(first: int, num_rows: int, num_logit_rows: int, parents: list[int] | None = None) -> None:
        ancestry = None
        places = list(range(first, first + num_rows))
        if parents is not None:
            ancestry = np.eye(num_rows, dtype=np.bool_)
            for row, parent in enumerate(parents, 1):
                ancestry[row] |= ancestry[parent]
            places = [first - 1 + int(above.sum()) for above in ancestry]
        inputs = ForwardInput(
            token_ids=[rng.randrange(vocab_size) for _ in range(num_rows)], positions=places, first_slot=first,
            prefix_len=first, ancestry=ancestry, num_logit_rows=num_logit_rows,
        )  # fmt: skip
        states_TH = torch.randn(num_rows, executor.body.hidden_size, generator=generator, dtype=torch.float64)
        outputs.append(executor.starting_from(states_TH.to(executor.cache.keys_LSKD.dtype)).run(inputs))

    half = num_text // 2
    if half:
        run(0, half, 0)
    run(half, num_text - half, 1)
    whole_chunk = 512 if seed % 8 == 7 else 0
    executor.clear(
        [slot for slot in range(num_text - 1) if slot < whole_chunk or rng.random() < 0.4] if seed % 2 else []
    )
    run(num_text, num_nodes, rng.randint(1, num_nodes), [rng.randrange(row) for row in range(1, num_nodes)])
    run(num_text, num_nodes, num_nodes)
    return outputs


@pytest.mark.parametrize("seed", range(40))
def test_native_layers_compute_what_torchs_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(weight_OI: Tensor, _: str) -> Weight:
        return DenseWeight(values_OI=weight_OI.contiguous())

    monkeypatch.setattr(eagle_program, "quantise", as_it_is)  # else the rounding of inputs hides what is compared
    rng = random.Random(seed)
    target = tiny_spec(rng, num_layers=3)
    spec = random_eagle(rng, target)
    tensors = eagle_tensors(spec, target, seed)
    executor = executor_of(spec, tensors, native, torch.float32)
    assert isinstance(executor, ProgramEagleExecutor)
    plain = executor_of(spec, tensors, in_torch, torch.float64)
    both = zip(passes(executor, target.vocab_size, seed), passes(plain, target.vocab_size, seed), strict=True)
    for found, expected in both:
        assert found.features is not None
        assert expected.features is not None
        torch.testing.assert_close(found.logits.double(), expected.logits, rtol=CLOSE, atol=CLOSE)
        torch.testing.assert_close(found.features.double(), expected.features, rtol=CLOSE, atol=CLOSE)


def test_its_weights_have_8_bits_and_are_held_once() -> None:
    rng = random.Random(1)
    target = tiny_spec(rng, num_layers=3)
    spec = random_eagle(rng, target)
    tensors = eagle_tensors(spec, target, 1)
    weights = HeadWeights(tensors)
    executor = executor_of(spec, tensors, lambda spec, _, *rest: native(spec, weights, *rest), torch.float32)
    assert isinstance(executor, ProgramEagleExecutor)
    linears = executor.layers.lowering.linears.values()
    assert {linear.descriptor.format for linear in linears} == {FORMATS["int8"]}
    assert not [name for name in tensors if name.startswith("layers.") and "proj" in name and name in weights]


def test_an_interrupt_while_buffers_grow_leaves_a_head_that_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    target = tiny_spec(rng, num_layers=3)
    spec = random_eagle(rng, target)
    executor = executor_of(spec, eagle_tensors(spec, target, 1), native, torch.float32)

    def logits(num_rows: int) -> Tensor:
        ids = list(range(num_rows))
        inputs = ForwardInput(token_ids=[0] * num_rows, positions=ids, first_slot=0, prefix_len=0, num_logit_rows=1)
        return executor.starting_from(torch.ones(num_rows, spec.body.hidden_size)).run(inputs).logits

    def interrupt() -> None:
        raise KeyboardInterrupt

    expected = logits(2)
    with monkeypatch.context() as patched:
        patched.setattr(native_executor, "library", interrupt)
        with pytest.raises(KeyboardInterrupt):
            logits(20)
    assert torch.equal(logits(2), expected)
