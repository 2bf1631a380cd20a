"""A paced runner computes what an unpaced one does, only later."""

from time import perf_counter

import torch

from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.pace import Pace
from forerun.model.runner import Runner
from tests.tiny import CAPACITY, plain_spec, random_weights

PACE = Pace(steps=((2, 0.03), (4, 0.05)))


def paced_runner(pace: Pace | None) -> Runner:
    spec = plain_spec()
    weights = random_weights(spec, torch.Generator().manual_seed(6))
    return Runner(
        spec, LoadedWeights(weights), backend=FUSED, capacity=CAPACITY, dtype=torch.float64, device="cpu", pace=pace
    )


def test_a_pace_changes_no_bit_of_the_logits() -> None:
    plain = paced_runner(None)
    paced = paced_runner(PACE)
    for token_ids in ([1, 2, 3], [4], [5, 6, 7, 8, 9]):
        expected = plain.extend(token_ids, num_logit_rows=len(token_ids))
        assert torch.equal(paced.extend(token_ids, num_logit_rows=len(token_ids)), expected)


def test_passes_take_at_least_the_time_for_their_rows() -> None:
    runner = paced_runner(PACE)
    began = perf_counter()
    runner.extend([1, 2], num_logit_rows=1)
    runner.extend([3, 4, 5, 6, 7], num_logit_rows=0)
    assert perf_counter() - began >= 0.03 + 2 * 0.05
