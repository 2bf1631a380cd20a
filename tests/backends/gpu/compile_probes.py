"""Kernels whose machine code is known beforehand, compiled in a process of its own: what is read of it, as JSON."""

import json
import sys
from dataclasses import asdict
from unittest.mock import patch

import torch
import triton
import triton.language as tl

from forerun.backends.gpu.language import await_inputs, launch_options, product
from tests.backends.gpu.compiling import compiling
from tests.backends.gpu.resources import (
    LOADS,
    LOCAL_INSTRUCTIONS,
    MATRIX_INSTRUCTIONS,
    Resources,
    compile_for,
    disassemble,
    launch_resources,
)

SIZE = 64
TYPES = {"values_ptr": "*bf16", "sums_ptr": "*fp32", "stride": "i32"}
ALIGNED = ("values_ptr", "sums_ptr", "stride")


@triton.jit
def multiply(values_ptr, sums_ptr, stride, SIZE: tl.constexpr, OVERLAPS: tl.constexpr):
    await_inputs(OVERLAPS)
    place = tl.arange(0, SIZE)
    values = tl.load(values_ptr + place[:, None] * stride + place[None, :])
    sums = product(values, values, tl.zeros((SIZE, SIZE), tl.float32))
    tl.store(sums_ptr + place[:, None] * SIZE + place[None, :], sums)


@triton.jit
def hoard(values_ptr, sums_ptr, stride, SIZE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Holds 384 numbers in each thread of one warp, and there are 255 registers."""
    place = tl.arange(0, SIZE * SIZE)
    first = tl.load(sums_ptr + place)
    second = tl.load(sums_ptr + stride + place)
    third = tl.load(sums_ptr + 2 * stride + place)
    for _ in range(stride):
        tl.debug_barrier()
        tl.store(sums_ptr + place, second)
        tl.store(sums_ptr + stride + place, third)
        tl.store(sums_ptr + 2 * stride + place, first)


def launched(architecture: int) -> dict[str, object]:
    """The first kernel as a launcher would launch it: values at an address that is a multiple of 16, and at another."""
    overlaps = architecture >= 90
    values = torch.empty(SIZE * SIZE + 1, dtype=torch.bfloat16, device="meta")
    sums = torch.empty(SIZE, SIZE, device="meta")
    options = launch_options(num_warps=4, overlaps=overlaps)
    with compiling(architecture) as launches:
        for start in (0, 1):
            multiply[(3, 2)](values[start:], sums, SIZE, SIZE, overlaps, **options)
    found = [launch_resources(launch) for launch in launches]
    return {
        "num_programs": launches[0].num_programs,
        "overlaps": launches[0].overlaps,
        "waits": found[0].count("ACQBULK"),
        "wide_loads": [each.count(*LOADS, modifier="128") for each in found],
    }


def by_hand(kernel: object, architecture: int, num_warps: int) -> Resources:
    constants = {"SIZE": SIZE, "OVERLAPS": False}
    return compile_for(kernel, TYPES, constants, ALIGNED, num_warps, 1, architecture)


def report(architecture: int) -> dict[str, object]:
    small, large = by_hand(multiply, architecture, 4), by_hand(hoard, architecture, 1)
    return {
        "launched": launched(architecture),
        **{
            name: {
                **asdict(found),
                "products": found.count(*MATRIX_INSTRUCTIONS),
                "local": found.count(*LOCAL_INSTRUCTIONS),
                "loop_spills": found.loop_spills,
            }
            for name, found in (("multiply", small), ("hoard", large))
        },
    }


class NoTools:
    """Triton's settings where NVIDIA's tools did not come along."""

    @property
    def cuobjdump(self) -> object:
        raise RuntimeError("Cannot find cuobjdump")


def complaint() -> str:
    """What is said where the tools are missing."""
    with patch.object(triton.knobs, "nvidia", NoTools()):
        try:
            disassemble(b"")
        except FileNotFoundError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    reports = {architecture: report(architecture) for architecture in (80, 90)}
    sys.stdout.write(json.dumps({**reports, "complaint": complaint()}))
