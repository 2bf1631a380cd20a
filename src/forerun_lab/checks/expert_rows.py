"""How long passes of several rows of a random gpt-oss take on the CPU's kernels, whose rows choose experts at random.

Passes of each width take turns, and medians are compared. Experts are in MXFP4, other weights in bfloat16.
"""

import argparse
import random
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import star
from forerun.model.runner import Runner
from forerun.model.weights import WHOLE, BlockWeight, DenseWeight, Part, Weight

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 200
DTYPE = torch.bfloat16


class RandomWeights:
    """A WeightSource that makes each weight when it is asked for it."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = fused_shapes(tensor_plan(spec))
        self._generator = torch.Generator().manual_seed(0)

    def table(self) -> DenseWeight:
        return DenseWeight(values_OI=self._random(self._shapes["embedding.weight"]).to(DTYPE))

    def vector(self, name: str) -> Tensor:
        return 1.0 + 0.1 * self._random(self._shapes[f"{name}.weight"])

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        num_out, num_in = self._shapes[f"{name}.weight"]
        bias_O = 0.1 * self._random((num_out,)) if f"{name}.bias" in self._shapes else None
        if ".experts." not in name:
            return DenseWeight(values_OI=(self._random((num_out, num_in)) * num_in**-0.5).to(DTYPE)), bias_O
        blocks = torch.randint(0, 256, (num_out, num_in // 32, 17), generator=self._generator).to(torch.uint8)
        blocks[:, :, 0] = torch.randint(118, 121, blocks.shape[:2], generator=self._generator).to(torch.uint8)
        return BlockWeight(blocks_OB=blocks.flatten(1), block_type="MXFP4", dtype=DTYPE), bias_O

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator)


def spec_of(arguments: argparse.Namespace) -> ModelSpec:
    yarn = RopeSpec(kind="yarn", theta=150_000.0, factor=32.0, original_max_positions=4096, truncate=False)
    return ModelSpec(
        family="gpt_oss", num_layers=arguments.layers, hidden_size=arguments.hidden, num_heads=arguments.heads,
        num_kv_heads=max(1, arguments.heads // 8), head_dim=64, intermediate_size=arguments.inner,
        vocab_size=arguments.vocab, max_positions=4096, norm_eps=1e-5, qkv_bias=True, out_bias=True, mlp_bias=True,
        gate="clamped", wide_norms=True, attention_sinks=True, num_experts=32, num_chosen_experts=4, window=128,
        sliding_layers=tuple(range(0, arguments.layers, 2)), rope=yarn,
    )  # fmt: skip


def time_rows(runner: Runner, rng: random.Random, num_rows: int, now: Callable[[], float]) -> float:
    """Milliseconds of a pass of a root and its children, all random tokens."""
    start = runner.cache.committed_len
    inputs = ForwardInput(
        token_ids=[rng.randrange(runner.spec.vocab_size) for _ in range(num_rows)],
        positions=[start + (row > 0) for row in range(num_rows)],
        first_slot=runner.cache.end,
        prefix_len=start,
        ancestry=star(num_rows),
        num_logit_rows=num_rows,
    )
    began = now()
    runner.forward(inputs)
    elapsed_ms = 1e3 * (now() - began)
    runner.cache.truncate(start)
    return elapsed_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("layers", 24), ("hidden", 576), ("inner", 256), ("heads", 16), ("vocab", 40_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument(
        "--own-time", action="store_true", help="the CPU time of one thread, where others use the cores"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1 if arguments.own_time else arguments.threads)
    now = time.thread_time if arguments.own_time else time.perf_counter
    rng = random.Random(0)
    spec = spec_of(arguments)
    runner = Runner(spec, RandomWeights(spec), backend=NATIVE, capacity=1024, dtype=DTYPE, device="cpu")
    runner.sync([rng.randrange(spec.vocab_size) for _ in range(CONTEXT)])
    times_ms: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(1 + arguments.repeats):  # the first one warms up
        for width, taken in times_ms.items():
            taken.append(time_rows(runner, rng, width, now))
    alone = median(times_ms[1][1:])
    for width, taken in times_ms.items():
        print(f"{width:3} rows  {median(taken[1:]):7.2f} ms  {median(taken[1:]) / alone:.2f} x one row")


if __name__ == "__main__":
    main()
