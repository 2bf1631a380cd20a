"""What kernels of linear layers should reach of an H100's memory, by arithmetic from what the compiler says they take.

Nothing here is timed. A kernel is near the limit if enough bytes are under way (Little's law), if processors have
equally much to do, and if instructions take less time than bytes; and if memory does not rest while kernels change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.split_k import EARLY_BLOCKS
from tests.backends.gpu.compiling import KIB, WARP_SIZE
from tests.backends.gpu.resources import Resources

PROCESSORS: Final = 132
BANDWIDTH: Final = 3.35e12  # Bytes a second.
STREAMED: Final = 0.92  # Of the bandwidth, what reading in order reaches.
LATENCY: Final = 0.8e-6  # Seconds from a request to its bytes while memory is busy.
CLOCK: Final = 1.7e9  # Hz; a processor issues up to four instructions of a warp in each.
ISSUES: Final = 4
REGISTERS: Final = 65536  # Of a processor.
SHARED: Final = 228 * KIB  # Of a processor; a program takes one KiB more than it asks for.
MOST_THREADS: Final = 2048

# Seconds, estimated: from a program's last weights to its end; for the last program of a tile, which joins the others'
# parts, more; until the next kernel, which waits, goes on; from a program's start to its first requests; and a kernel
# of attention to a short text, from when it may read its queries to its end.
END: Final = 1.0e-6
JOIN: Final = 1.0e-6
RELEASE: Final = 0.5e-6
START: Final = 0.3e-6
ATTENTION: Final = 4.0e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one launch should reach.

    Args:
        resident: programs that a processor has room for at a time.
        bytes_in_flight: of weights, on a processor.
        waves: programs for every place there is for one.
        evenness: mean over largest share of a processor, in blocks of inputs.
        issued: time to issue the loops' instructions over the time to read the weights.
        share: of the bandwidth, while the kernel runs.
        seconds: the kernel's own time.
        early_bytes: asked for before the kernel ahead has ended, by the programs that are resident.
        program_bytes: of shared memory that a program takes.
    """

    resident: int
    bytes_in_flight: int
    waves: float
    evenness: float
    issued: float
    share: float
    seconds: float
    early_bytes: int
    program_bytes: int


def expect(packed: DeviceLinear, num_rows: int, found: Resources) -> Expected:
    """For a weight and the kernel that multiplies rows by it."""
    tiles = packed.tiles
    rows = packed.rows_of_program(num_rows)
    num_blocks, num_tiles, num_splits = packed.grid(num_rows)
    num_programs = num_blocks * num_tiles * num_splits
    inputs = ceil(packed.num_in / tiles.block_in)
    threads = found.num_warps * WARP_SIZE
    resident = min(
        REGISTERS // (ceil(found.registers / 8) * 8 * threads), SHARED // (found.shared_bytes + KIB),
        MOST_THREADS // threads,
    )  # fmt: skip
    program_bytes = weight_bytes(packed) / (num_tiles * num_splits)
    step_bytes = weight_bytes(packed) / packed.num_in * rows.step_in / num_tiles
    at_work = min(resident, num_programs / PROCESSORS)
    in_flight = at_work * (rows.num_stages - 1) * step_bytes
    busiest = ceil(num_programs / PROCESSORS) * ceil(inputs / num_splits)
    evenness = num_blocks * num_tiles * inputs / PROCESSORS / busiest
    reading = weight_bytes(packed) / (BANDWIDTH * STREAMED)
    num_issued = sum(found.loop_instructions.values()) * num_blocks * num_tiles * packed.num_in / rows.step_in
    if not found.loop_instructions:  # The loop is unrolled.
        num_issued = found.num_instructions * num_programs
    issuing = num_issued * found.num_warps / (PROCESSORS * ISSUES * CLOCK)
    enough = min(1.0, in_flight / (BANDWIDTH / PROCESSORS * LATENCY))
    seconds = max(reading / enough, issuing) / evenness
    block_bytes = weight_bytes(packed) / (num_tiles * inputs)
    early = min(EARLY_BLOCKS.value * block_bytes, program_bytes) * min(resident * PROCESSORS, num_programs)
    return Expected(
        resident=resident, bytes_in_flight=int(in_flight), waves=num_programs / (resident * PROCESSORS),
        evenness=evenness, issued=issuing / reading, share=weight_bytes(packed) / seconds / BANDWIDTH,
        seconds=seconds, early_bytes=int(early), program_bytes=found.shared_bytes + KIB,
    )  # fmt: skip


def weight_bytes(packed: DeviceLinear) -> int:
    """Of a matrix and its scales."""
    matrix = packed.weight.matrix
    scales = packed.weight.scales
    return matrix.nbytes + (0 if scales is None else scales.nbytes)


def idle_seconds(layer: Mapping[str, Expected]) -> float:
    """Time in which memory rests while the kernels of a layer change, each before its own kernel.

    Until a running program ends, only those of the next kernel that fit beside it have asked for weights. Attention to
    a short text reads next to nothing.

    Args:
        layer: by "qkv", "attention", "gate_up" and "mlp", the weights' kernels in order.
    """
    names = list(layer)
    idle = 0.0
    for before, name in zip([names[-1], *names[:-1]], names, strict=True):
        ahead = layer[before]
        kernel = layer[name]
        if name == "attention":
            idle += END + JOIN + RELEASE
            idle += max(0.0, ATTENTION + RELEASE - kernel.early_bytes / BANDWIDTH)
            continue
        free = SHARED - min(ahead.resident, ceil(ahead.waves * ahead.resident)) * ahead.program_bytes
        beside = max(0, free // kernel.program_bytes) / kernel.resident * kernel.early_bytes
        idle += max(0.0, END + START - beside / BANDWIDTH)
        idle += max(0.0, JOIN + RELEASE - START - (kernel.early_bytes - beside) / BANDWIDTH)
    return idle
