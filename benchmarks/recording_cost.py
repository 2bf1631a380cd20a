"""Host time to record every shape of an engine's passes and rounds as graphs, without a GPU.

Kernels are compiled for an architecture and not run: timed are Python and Triton's launcher, without the driver's
part. The models are narrow, as only the number of layers counts.

    PYTHONPATH=. .venv/bin/python -m benchmarks.recording_cost
"""

import argparse
import random
import sys
from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from unittest.mock import patch

import torch

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.cuda_graphs import GraphPool, Work
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.drafter_config import DraftModel
from forerun.drafting.drafter import RoundPlan
from forerun.drafting.tree_policy import BEST_TREE
from forerun.engine.opening import KINDS_OF_ROUNDS
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from tests.backends.gpu.compiling import Launch, compiling
from tests.tiny import random_weights, tiny_spec

TREE = DraftModel(verify_width=16, draft_width=8, depth=8, adaptive=True)


def runner_of(num_layers: int, capacity: int) -> Runner:
    """A model of so many narrow layers."""
    spec = tiny_spec(
        random.Random(1), num_layers=num_layers, hidden_size=64, num_heads=2, num_kv_heads=1, head_dim=32,
        intermediate_size=64, vocab_size=256, max_positions=capacity,
    )  # fmt: skip
    weights = random_weights(spec, torch.Generator().manual_seed(1), dtype=torch.bfloat16)
    loaded = LoadedWeights(weights, "plain")
    return Runner(spec, loaded, backend=TRITON, capacity=capacity, dtype=torch.bfloat16, device="cpu")


def record_all(target: Runner, rounds: DeviceRounds, draft: Runner) -> None:
    """Record what an engine's warm-up records."""
    rounds.graphs.records = True
    for params in KINDS_OF_ROUNDS:
        rounds.begin(params, 1)
    for runner in (target, draft):
        executor = runner.executor
        assert isinstance(executor, DeviceExecutor)
        executor.graphs.records = True
        for num_logit_rows in (0, 1):
            runner.forward(
                ForwardInput(token_ids=[1], positions=[0], first_slot=0, prefix_len=0, num_logit_rows=num_logit_rows)
            )


def timed(launches: list[Launch], run: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and launches."""
    num_before, began = len(launches), perf_counter()
    run()
    return perf_counter() - began, len(launches) - num_before


def record(_pool: GraphPool, work: Work) -> SimpleNamespace:
    """Replaces CUDA's recording."""
    work()
    return SimpleNamespace(replay=lambda: None)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target-layers", type=int, default=32)
    parser.add_argument("--draft-layers", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=8192)
    args = parser.parse_args()
    seconds: list[float] = []
    num_graphs = num_launches = 0
    with compiling(90) as launches, patch.object(GraphPool, "_record", record):
        for repeat in range(4):  # The first one compiles.
            target, draft = runner_of(args.target_layers, args.capacity), runner_of(args.draft_layers, args.capacity)
            rounds = DeviceRounds(target, RoundPlan(draft=draft, shape=TREE, policy=BEST_TREE, vocabulary=None))
            spent_s, num_launches = timed(launches, lambda: record_all(target, rounds, draft))  # noqa: B023
            pools = [rounds.graphs, target.executor.graphs, draft.executor.graphs]  # type: ignore[attr-defined]
            num_graphs = sum(len(pool._graphs) for pool in pools)
            seconds += [spent_s] if repeat else []
    best_s = min(seconds)
    sys.stdout.write(
        f"{num_graphs} graphs, {num_launches} launches (to compile and to record): {best_s:.2f} s, "
        f"{1e6 * best_s / num_launches:.1f} us a launch\n"
    )


if __name__ == "__main__":
    with patch("forerun.backends.gpu.executor.can_overlap", lambda _: True):
        main()
