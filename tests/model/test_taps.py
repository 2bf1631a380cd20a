"""Taps: the residual stream behind named layers, in every executor."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput
from forerun.model.program import Op
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.model.kernel_sets import KERNEL_SETS
from tests.tiny import random_weights, tiny_runner, tiny_spec

CLOSE = 2e-5  # of the largest element, in float32


def runner_of(seed: int, backend: ModelBackend) -> Runner:
    spec = tiny_spec(random.Random(seed))
    weights = random_weights(spec, torch.Generator().manual_seed(seed), dtype=torch.float32)
    return tiny_runner(spec, weights, backend=backend)


def random_pass(seed: int, spec: ModelSpec, first_slot: int) -> ForwardInput:
    """A tree; some sublayers are skipped by all rows, some by a few, and some layers are tapped."""
    rng = random.Random(seed)
    parents = random_parents(rng, rng.randint(1, 12))
    sublayers = all_sublayers(spec.num_layers)
    ancestry = ancestry_matrix(parents)
    return ForwardInput(
        token_ids=[rng.randrange(spec.vocab_size) for _ in parents],
        positions=[first_slot + int(row.sum()) - 1 for row in ancestry],
        first_slot=first_slot,
        prefix_len=first_slot,
        ancestry=ancestry,
        num_logit_rows=rng.randint(0, len(parents)),
        skipped=frozenset(rng.sample(sublayers, rng.choice([0, rng.randrange(len(sublayers))]))),
        row_skips=rng.choice([None, np.array([[rng.random() < 0.5 for _ in sublayers] for _ in parents])]),
        taps=tuple(sorted(rng.sample(range(spec.num_layers), rng.randint(1, spec.num_layers)))),
    )


def residual_stream(runner: Runner, inputs: ForwardInput) -> Tensor:
    """What the observer of an untapped pass sees of `x` behind the tapped layers."""
    embedded: list[Tensor] = []
    behind: dict[int, Tensor] = {}

    def observe(op: Op, buffer: Tensor) -> None:
        if op.kind == "embed":
            embedded.append(buffer.clone())
        elif op.kind == "linear_add":
            behind[op.layer] = buffer.clone()

    runner.forward(replace(inputs, taps=()), observe)
    (stream,) = embedded
    features = []
    for layer in range(runner.spec.num_layers):
        stream = behind.get(layer, stream)  # a layer of which all is skipped passes it on
        if layer in inputs.taps:
            features.append(stream)
    return torch.stack(features, 1)


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("seed", range(6))
def test_features_are_the_residual_stream_that_an_observer_sees(seed: int, kernels: ModelBackend) -> None:
    runner = runner_of(seed, kernels)
    reference = runner_of(seed, REFERENCE)
    prefix = [1, 0, 2] * (seed % 4)
    for one in (runner, reference):
        one.sync(prefix)
    inputs = random_pass(seed, runner.spec, runner.cache.reserve(12))
    reference.cache.reserve(12)
    features = runner.forward(inputs).features
    assert features is not None
    assert features.shape == (len(inputs.token_ids), len(inputs.taps), runner.spec.hidden_size)
    assert torch.equal(features, residual_stream(runner, inputs))
    expected = residual_stream(reference, inputs)
    assert (features - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("seed", range(5))
def test_taps_change_no_logit_and_none_are_there_unasked(seed: int, kernels: ModelBackend) -> None:
    runner = runner_of(seed, kernels)
    inputs = random_pass(seed, runner.spec, runner.cache.reserve(12))
    tapped = runner.forward(inputs)
    untapped = runner.forward(replace(inputs, taps=()))
    assert torch.equal(tapped.logits, untapped.logits)
    assert untapped.features is None


def test_taps_are_named_once_and_in_order() -> None:
    for taps in ((1, 0), (1, 1)):
        with pytest.raises(AssertionError, match="taps"):
            ForwardInput(token_ids=[1], positions=[0], first_slot=0, prefix_len=0, taps=taps)
