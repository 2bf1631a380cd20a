"""Sliding windows over long texts: the native kernels, which skip what no row sees, against the reference."""

import random

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.model.kernel_sets import NATIVE_SETS
from tests.tiny import random_weights, tiny_runner, tiny_spec

LENGTH = 1300  # more than two of the native kernels' chunks of 512 slots
MAX_ERROR = 2e-4
CASES = [(window, num_kv_heads) for window in (3, 512, 700) for num_kv_heads in (1, 2)]


def logits_of(runner: Runner, text: list[int], seed: int) -> torch.Tensor:
    """Of the text's last rows, and of a tree behind it."""
    rng = random.Random(seed)
    of_text = runner.extend(text, num_logit_rows=20)
    parents = random_parents(rng, 13)
    ancestry = ancestry_matrix(parents)
    of_tree = runner.forward(
        ForwardInput(
            token_ids=[rng.randrange(runner.spec.vocab_size) for _ in parents],
            positions=[len(text) + int(row.sum()) - 1 for row in ancestry],
            first_slot=runner.cache.reserve(len(parents)),
            prefix_len=len(text),
            ancestry=ancestry,
            num_logit_rows=len(parents),
        )
    ).logits
    return torch.cat((of_text, of_tree))


@pytest.mark.parametrize("kernels", [*NATIVE_SETS, pytest.param(FUSED, id="fused")])
@pytest.mark.parametrize(("window", "num_kv_heads"), CASES)
def test_a_window_hides_the_same_tokens_in_every_kernel(kernels: object, window: int, num_kv_heads: int) -> None:
    rng = random.Random(window)
    spec = tiny_spec(
        rng, num_layers=2, num_heads=2, num_kv_heads=num_kv_heads, head_dim=8, vocab_size=40, max_positions=LENGTH + 40,
        window=window, sliding_layers=(0,),
    )  # fmt: skip
    weights = random_weights(spec, torch.Generator().manual_seed(window), dtype=torch.float32)
    text = [rng.randrange(spec.vocab_size) for _ in range(LENGTH)]
    expected, actual = (
        logits_of(tiny_runner(spec, weights, backend=one, capacity=LENGTH + 40), text, window)  # type: ignore[arg-type]
        for one in (REFERENCE, kernels)
    )
    assert (actual - expected).abs().max() <= MAX_ERROR * expected.abs().max()


@pytest.mark.skipif(not NATIVE_SETS or bool(NATIVE_SETS[0].marks[0].args[0]), reason="no native kernels")
def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    rng = random.Random(5)
    spec = tiny_spec(
        rng, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, vocab_size=40, window=600, sliding_layers=(0,)
    )
    weights = random_weights(spec, torch.Generator().manual_seed(5), dtype=torch.float32)
    text = [rng.randrange(spec.vocab_size) for _ in range(LENGTH)]
    together, alone = (tiny_runner(spec, weights, backend=NATIVE, capacity=LENGTH) for _ in range(2))
    rows = together.extend(text, num_logit_rows=8)
    alone.extend(text[:-8], num_logit_rows=0)
    single = torch.cat([alone.extend([token], num_logit_rows=1) for token in text[-8:]])
    assert torch.equal(rows, single)
