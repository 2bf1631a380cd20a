"""The executors against the whole model on one page: a prompt, a tree behind it, and a tree after an accepted path."""

import random

import pytest
import torch

from forerun.backends.backend import Backend
from forerun.backends.torch.readable_model import ReadableModel
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.executor import ForwardInput
from forerun.speculation.tree import ancestry_matrix
from tests.model.kernel_sets import KERNEL_SETS
from tests.tiny import plain_spec, random_weights, tiny_runner

PLAIN = {"qkv_bias": False, "out_bias": False, "mlp_bias": False, "qk_norm": False}
LLAMA3 = RopeSpec(theta=100.0, kind="llama3", factor=8.0, original_max_positions=32)
MODELS = {
    "llama": plain_spec(**PLAIN, rope=LLAMA3),
    "qwen2": plain_spec(**{**PLAIN, "qkv_bias": True}, tied_embeddings=True),
    "qwen3": plain_spec(**{**PLAIN, "qk_norm": True}),
}
DTYPES = {"native": torch.float32}  # the other kernels run in float64
MAX_ERRORS = {torch.float32: 2e-5, torch.float64: 1e-11}
TREE = (-1, 0, 0, 1, 2, 1, 3, 4)  # the parent of each node
ACCEPTED = [0, 2, 4, 7]  # a path whose rows do not follow one another in the cache


def tree_rows(rng: random.Random, text: list[int], vocab_size: int) -> ForwardInput:
    ancestry = ancestry_matrix(TREE)
    return ForwardInput(
        token_ids=[rng.randrange(vocab_size) for _ in TREE],
        positions=[len(text) + int(row.sum()) - 1 for row in ancestry],
        first_slot=len(text),
        prefix_len=len(text),
        ancestry=ancestry,
        num_logit_rows=len(TREE),
    )


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_prompt_tree_and_next_tree_have_the_logits_of_the_readable_model(spec: ModelSpec, kernels: Backend) -> None:
    rng = random.Random(1)
    dtype = DTYPES.get(kernels.name, torch.float64)
    weights = random_weights(spec, torch.Generator().manual_seed(1), dtype=dtype)
    twin = ReadableModel(spec, weights, num_slots=40)
    runner = tiny_runner(spec, weights, backend=kernels, capacity=40)
    text = [rng.randrange(spec.vocab_size) for _ in range(9)]
    prompt = ForwardInput(token_ids=text, positions=list(range(9)), first_slot=0, prefix_len=0, num_logit_rows=9)
    expected = [twin.forward(prompt)]
    actual = [runner.extend(text, num_logit_rows=9)]
    for _ in range(2):
        inputs = tree_rows(rng, text, spec.vocab_size)
        expected.append(twin.forward(inputs))
        runner.cache.reserve(len(TREE))
        actual.append(runner.forward(inputs).logits)
        accepted_ids = [inputs.token_ids[row] for row in ACCEPTED]
        twin.keep(len(text), ACCEPTED)
        runner.commit(ACCEPTED, accepted_ids)
        text = text + accepted_ids
    for got, wanted in zip(actual, expected, strict=True):
        assert wanted.std() > 0.5, "the logits are too flat to show a difference"
        torch.testing.assert_close(got, wanted, atol=MAX_ERRORS[dtype], rtol=0)
    torch.testing.assert_close(
        runner.cache.keys_LSKD[:, : len(text)], twin.keys_LSKD[:, : len(text)], atol=MAX_ERRORS[dtype], rtol=0
    )


def test_the_readable_model_refuses_what_is_not_on_its_page() -> None:
    with pytest.raises(AssertionError, match="a tanh-GELU gate"):
        ReadableModel(plain_spec(gate="gelu_tanh"), {}, num_slots=8)
