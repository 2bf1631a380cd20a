"""Test whether a row's bits depend only on its own text: random rows alone, among siblings, on one and two threads.

It counts rows and times nothing, so any machine will do. python benchmarks/bit_identity.py --num-checks 50000
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from common import numbers, standard_arguments, write_results
from row_bits import Tally, play

from forerun import EngineConfig
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.open import open_source
from forerun.engine.model_loading import Checkpoint
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner

CAPACITY = 768
LENGTHS = (20, 60, 600)  # the last one is longer than one chunk of attention
MOST_ROWS, MOST_PREFILL = 24, 128


@contextmanager
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def count(kernels: ModelBackend, dtype: str, num_checks: int, num_threads: int) -> tuple[int, int]:
    """Number of rows compared, and of rows that differ."""
    found = Checkpoint.open(open_source("builtin"), EngineConfig(**numbers(dtype)))
    runner = Runner(
        found.spec,
        found.source.weights(dtype=found.dtype, weight_format=found.weight_format),
        backend=kernels,
        capacity=CAPACITY,
        dtype=found.dtype,
        device="cpu",
    )
    tally, rng = Tally(), random.Random(0)
    while tally.checks < num_checks:
        torch.set_num_threads(rng.choice((1, num_threads)))
        play(
            runner, rng, tally, length=rng.choice(LENGTHS), num_rows=rng.randint(2, MOST_ROWS),
            most_prefill=MOST_PREFILL, alone_in=one_thread,
        )  # fmt: skip
    return tally.checks, tally.rows


def main() -> None:
    parser = standard_arguments(__doc__, "bit_identity")
    parser.add_argument("--num-checks", type=int, default=50_000, help="rows compared in each dtype")
    arguments = parser.parse_args()
    rows = []
    for kernels, share in ((NATIVE, 1.0), (FUSED, 0.02)):
        for dtype in ("float32", "bfloat16", "int8", "int4"):
            num_checks = int(share * arguments.num_checks)
            done, different = count(kernels, dtype, num_checks, max(2, arguments.threads))
            rows.append({
                "kernels": kernels.name, "dtype": dtype,
                "rows compared": f"{done:,}", "rows with other bits": different,
            })  # fmt: skip
            print(rows[-1], flush=True)
    notes = [
        "Built-in target, random texts of 20, 60 and 600 tokens. A row alone on one thread against the same row in a "
        "verified tree, among siblings, and in prefills of other lengths, on one thread and on several.",
        "`fused` are torch's kernels, which promise nothing: if nothing differed with them either, nothing was tested.",
    ]
    write_results(arguments, "Bits of a row in any company", rows, notes)


if __name__ == "__main__":
    main()
