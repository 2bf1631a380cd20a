"""What no rehearsal can tell, and which section of the check, or which tests, tell it on a GPU."""

from collections.abc import Sequence
from typing import Final

from benchmarks.gpu.cases import Row

ONLY_A_GPU: Final = (
    ("how long kernels, passes and rounds take, and their share of the memory's bandwidth", "kernels, passes, rounds"),
    ("how long the device idles between kernels, and what early requests for weights save", "passes"),
    ("what a part of a round more costs, as every draft pass is a graph launch of its own", "rounds"),
    ("whether a row's bits are its own: matrix instructions for 16 and for 32 rows, of every dtype", "bits, suite"),
    ("whether memory is ordered as kernels expect: counters of splits, loads past a cache", "bits, suite"),
    ("whether recorded graphs do what ordinary runs did, for two engines in one process too", "suite, faults"),
    ("how long opening takes: compilers, ordinary runs, recording; and the memory that graphs take", "passes, rounds"),
    ("whether a kernel's registers and shared memory are had at launch, not only at compilation", "kernels, passes"),
    ("what CUDA and the allocator take besides the storages that are counted", "passes, faults"),
    ("whether a device without memory is usable after a failed opening", "faults"),
    ("whether GPUs reach each other's memory, and what sums over ranks cost", "ranks, suite"),
    ("which tiles and numbers of splits are best", "sweep"),
    ("how transformers and torch's kernels compare", "peers"),
)  # fmt: skip


def only_a_gpu(tests: Sequence[Row]) -> list[str]:
    """The list as lines, with the collected tests that carry the mark `gpu`."""
    lines = [f"* {what}: `scripts/gpu_check --only {told_by.replace(',', '')}`" for what, told_by in ONLY_A_GPU]
    return [*lines, *(f"* tests that need a GPU in {row['file']}: {row['tests']}" for row in tests if "file" in row)]
