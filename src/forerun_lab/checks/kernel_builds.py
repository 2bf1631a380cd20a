"""Two builds of the CPU's kernels, or two instruction sets of one, product by product: times in pairs, and bits.

python -m forerun_lab.checks.kernel_builds BEFORE.so AFTER.so --tiers avx2,avx512_bf16 > pairs.md
python -m forerun_lab.checks.kernel_builds ONE.so ONE.so --tiers avx512_bf16:avx512_amx --rows 8,11,16,64 > pairs.md

Each line is a format: for each number of rows the median over the pairs of the time after by the time before, on one
thread, with weights that the second-level cache holds, so that computing is timed and not reading.
"""

import argparse
from ctypes import CDLL, byref
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from forerun.backends.cpu.binding import SIGNATURES
from tests.backends.cpu.test_linear import FORMATS, packed, random_tensor, weight_of

SHAPE = (1536, 2048)  # outputs and inputs
LEAST_S = 0.02  # of one timing


@dataclass(frozen=True)
class Kernels:
    """One instruction set of a build."""

    build: CDLL
    tier: str

    def select(self) -> None:
        assert self.build.forerun_select_tier(self.tier.encode()), f"the build or the CPU lacks {self.tier}"


def open_kernels(path: str, tier: str) -> Kernels:
    build = CDLL(path)
    build.forerun_linear.argtypes = SIGNATURES["linear"][1:]
    return Kernels(build, tier)


def time_of(kernels: Kernels, linear: Any, x: Tensor, y: Tensor, num_calls: int) -> float:
    kernels.select()
    begun = perf_counter()
    for _ in range(num_calls):
        kernels.build.forerun_linear(linear, x.data_ptr(), len(x), y.data_ptr(), None, 0, 1)
    return (perf_counter() - begun) / num_calls


def ratio(both: tuple[Kernels, Kernels], linear: Any, num_rows: int, num_inputs: int, num_pairs: int) -> float:
    """After by before, of the median pair; the bits are compared too."""
    x = random_tensor(num_rows, num_inputs, seed=num_rows)
    written = [torch.zeros(num_rows, SHAPE[0]) for _ in both]
    seconds = [time_of(kernels, linear, x, y, 1) for kernels, y in zip(both, written, strict=True)]
    assert written[0].equal(written[1]), "the builds write other bits"
    num_calls = max(1, round(LEAST_S / min(seconds)))
    pairs = [
        [time_of(kernels, linear, x, y, num_calls) for kernels, y in zip(both, written, strict=True)]
        for _ in range(num_pairs)
    ]
    return median(after / before for before, after in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--tiers", required=True, help="before:after, or one name for both")
    parser.add_argument("--rows", default="1,2,4,8,16,64")
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    rows = [int(word) for word in asked.rows.split(",")]
    for tier in asked.tiers.split(","):
        before, _, after = tier.partition(":")
        both = (open_kernels(asked.before, before), open_kernels(asked.after, after or before))
        print(f"\n{tier}, {asked.pairs} pairs, rows:\n\n| format | {' | '.join(map(str, rows))} |")
        print("|---" * (len(rows) + 1) + "|")
        for name in FORMATS:
            linear = packed(name, weight_of(name, *SHAPE))
            found = [
                ratio(both, byref(linear.descriptor), num_rows, linear.descriptor.num_in, asked.pairs)
                for num_rows in rows
            ]
            print(f"| {name} | {' | '.join(f'{one:.2f}' for one in found)} |", flush=True)


if __name__ == "__main__":
    main()
