"""A forward pass against the dense reference: positions, masks, skipped sublayers, growing caches."""

import random
from itertools import pairwise

import pytest
import torch

from forerun.backends.torch.backend import FUSED, REFERENCE, TorchBackend
from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.decoding.drafters import Drafters
from forerun.model.executor import ForwardInput
from forerun.model.runner import PREFILL_ROWS
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.dense_reference import dense_logits
from tests.tiny import decode_ids, plain_spec, random_weights, tiny_runner, tiny_spec

MAX_ERROR = 1e-9
KERNELS = pytest.mark.parametrize("kernels", [REFERENCE, FUSED], ids=lambda kernels: kernels.name)


@KERNELS
@pytest.mark.parametrize("seed", range(10))
def test_a_text_in_pieces_gives_the_logits_of_the_whole(kernels: TorchBackend, seed: int) -> None:
    rng = random.Random(seed)
    spec = tiny_spec(rng)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    runner = tiny_runner(spec, weights, backend=kernels)
    token_ids = [rng.randrange(spec.vocab_size) for _ in range(rng.randint(1, 60))]
    cuts = sorted({0, len(token_ids), *(rng.randrange(len(token_ids)) for _ in range(3))})
    pieces = [runner.extend(token_ids[a:b], num_logit_rows=b - a) for a, b in pairwise(cuts)]
    expected = dense_logits(spec, weights, token_ids)
    assert expected.std() > 0.5, "the logits are too flat to tell anything apart"
    torch.testing.assert_close(torch.cat(pieces), expected, atol=MAX_ERROR, rtol=0)


@KERNELS
@pytest.mark.parametrize("seed", range(10))
def test_every_node_of_a_tree_gives_the_logits_of_its_own_path(kernels: TorchBackend, seed: int) -> None:
    rng = random.Random(seed)
    spec = tiny_spec(rng)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    runner = tiny_runner(spec, weights, backend=kernels)
    prefix = [rng.randrange(spec.vocab_size) for _ in range(rng.randint(0, 20))]
    runner.sync(prefix)
    parents = random_parents(rng, rng.randint(1, 16))
    token_ids = [rng.randrange(spec.vocab_size) for _ in parents]
    ancestry = ancestry_matrix(parents)
    logits = runner.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=[len(prefix) + int(row.sum()) - 1 for row in ancestry],
            first_slot=runner.cache.reserve(len(parents)),
            prefix_len=len(prefix),
            ancestry=ancestry,
            num_logit_rows=len(parents),
        )
    ).logits
    for node, row in enumerate(ancestry):
        path = [token_ids[place] for place in row.nonzero()[0]]
        expected = dense_logits(spec, weights, [*prefix, *path])[-1]
        torch.testing.assert_close(logits[node], expected, atol=MAX_ERROR, rtol=0)


@KERNELS
def test_a_position_off_by_one_changes_the_logits(kernels: TorchBackend) -> None:
    """Attention sees distances alone, so one row's shift against the prefix must show, or positions are not tested."""
    spec = plain_spec()
    runner = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(1)), backend=kernels)
    results = []
    for shift in (0, 1):
        runner.sync(())
        runner.sync([1, 2, 3, 4])
        inputs = ForwardInput(token_ids=[5], positions=[4 + shift], first_slot=runner.cache.reserve(1), prefix_len=4)
        results.append(runner.forward(inputs).logits)
    assert (results[0] - results[1]).abs().max() > 1e-3


@KERNELS
@pytest.mark.parametrize("seed", range(8))
def test_skipping_sublayers_equals_a_model_whose_sublayers_add_nothing(kernels: TorchBackend, seed: int) -> None:
    rng = random.Random(seed)
    spec = tiny_spec(rng)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    every = [(layer, kind) for layer in range(spec.num_layers) for kind in ("attention", "mlp")]
    skipped = frozenset(sublayer for sublayer in every if rng.random() < 0.5)
    silent = dict(weights)
    for layer, kind in skipped:
        out = f"layers.{layer}." + ("attention_out" if kind == "attention" else "mlp_out")
        for name in (f"{out}.weight", f"{out}.bias"):
            if name in silent:
                silent[name] = torch.zeros_like(silent[name])
    token_ids = [rng.randrange(spec.vocab_size) for _ in range(12)]
    runner, other = (tiny_runner(spec, values, backend=kernels) for values in (weights, silent))
    inputs = ForwardInput(
        token_ids=token_ids,
        positions=list(range(12)),
        first_slot=runner.cache.reserve(12),
        prefix_len=0,
        num_logit_rows=12,
        skipped=skipped,
    )
    actual = runner.forward(inputs).logits
    torch.testing.assert_close(actual, other.extend(token_ids, num_logit_rows=12), atol=MAX_ERROR, rtol=0)
    torch.testing.assert_close(actual, dense_logits(spec, weights, token_ids, skipped=skipped), atol=MAX_ERROR, rtol=0)


def test_a_prompt_longer_than_one_prefill_pass_is_cached_whole() -> None:
    num_tokens = 2 * PREFILL_ROWS + 3
    spec = plain_spec(max_positions=num_tokens + 1)
    weights = random_weights(spec, torch.Generator().manual_seed(3))
    runner = tiny_runner(spec, weights, capacity=num_tokens + 1, exactness="fast")
    rng = random.Random(3)
    token_ids = [rng.randrange(spec.vocab_size) for _ in range(num_tokens)]
    runner.sync(token_ids[:-1])
    logits = runner.extend(token_ids[-1:], num_logit_rows=1)
    torch.testing.assert_close(logits[0], dense_logits(spec, weights, token_ids)[-1], atol=MAX_ERROR, rtol=0)


def test_a_shared_start_is_not_computed_again() -> None:
    spec = plain_spec()
    runner = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(4)))
    assert runner.sync([1, 2, 3, 4]) == 0
    assert runner.sync([1, 2, 9]) == 2
    assert runner.cached_ids == [1, 2, 9]
    assert runner.sync([1, 2, 9]) == 3
    assert runner.sync([]) == 0
    assert runner.cached_ids == []


@KERNELS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_model_that_computes_nan_ends_with_an_error(kernels: TorchBackend, temperature: float, poison: float) -> None:
    spec = plain_spec()
    weights = random_weights(spec, torch.Generator().manual_seed(5))
    weights["head.weight"][7] = poison
    target = tiny_runner(spec, weights, backend=kernels)
    with pytest.raises(NumericalError, match="nothing can be chosen"):
        decode_ids(target, Drafters(), [1, 2], SamplingParams(temperature=temperature), seed=1, num_tokens=8)


@pytest.mark.parametrize(
    "changes", [{"positions": [0]}, {"prefix_len": 3}, {"num_logit_rows": 3}, {"ancestry": ancestry_matrix([-1, 0, 1])}]
)
def test_rows_that_do_not_fit_together_are_refused(changes: dict[str, object]) -> None:
    fields = {"token_ids": [1, 2], "positions": [2, 3], "first_slot": 2, "prefix_len": 2}
    with pytest.raises(AssertionError):
        ForwardInput(**{**fields, **changes})  # type: ignore[arg-type]
