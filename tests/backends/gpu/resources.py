"""What kernels take of a GPU, read from their machine code. No GPU is needed, only Triton's own compiler and tools."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import triton

from tests.backends.gpu.compiling import SHARED_LIMITS, Launch

MATRIX_INSTRUCTIONS: Final = ("HMMA", "HGMMA", "IMMA", "IGMMA")
LOCAL_INSTRUCTIONS: Final = ("LDL", "STL")  # to and from memory that stands in for registers
PREFETCH: Final = "CCTL"
WAIT: Final = "ACQBULK"  # until the kernel before has ended
LOADS: Final = ("LDG", "LDGSTS")  # of global memory, to registers and to shared memory

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
# Address, name, operands; a predicate may stand before the name.
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.MULTILINE)
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one kernel takes, compiled for one architecture.

    Args:
        architecture: 80 for compute capability 8.0.
        registers: of a thread.
        stack_bytes: of a thread; 0 unless registers are spilled.
        shared_bytes: of a program.
        instructions: how often an instruction stands in the machine code, by its name with all modifiers; none where
            the code was not read.
        loop_instructions: the same for what stands in loops.
        early_prefetches: instructions that ask for memory before the wait for the kernel before; 0 without a wait.
    """

    kernel: str
    architecture: int
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int]
    loop_instructions: Mapping[str, int]
    early_prefetches: int

    def count(self, *names: str, modifier: str = "", in_loops: bool = False) -> int:
        """Instructions of these names (those before the first dot), of those only the ones with a modifier if given."""
        counted = (
            count
            for instruction, count in (self.loop_instructions if in_loops else self.instructions).items()
            if instruction.split(".")[0] in names and (not modifier or modifier in instruction.split(".")[1:])
        )
        return sum(counted)

    @property
    def num_instructions(self) -> int:
        return sum(self.instructions.values())

    @property
    def loop_spills(self) -> int:
        """Instructions in loops that save or fetch a spilled register. Outside they cost little: they run once."""
        return self.count(*LOCAL_INSTRUCTIONS, in_loops=True)

    @property
    def fits(self) -> bool:
        """A program's shared memory is there on this architecture."""
        return self.shared_bytes <= SHARED_LIMITS[self.architecture]


def launch_resources(launch: Launch, *, with_code: bool = True) -> Resources:
    """What the kernel of a launch takes."""
    return read_resources(
        launch.binary,
        with_code=with_code,
        kernel=launch.kernel,
        architecture=launch.architecture,
        num_warps=launch.num_warps,
        shared_bytes=launch.shared_bytes,
    )


def read_resources(
    binary: bytes, *, with_code: bool, kernel: str, architecture: int, num_warps: int, shared_bytes: int
) -> Resources:
    """Resources of a kernel's binary; what the binary does not tell is given.

    Args:
        with_code: read its machine code too, which takes half a second. Where registers are spilled it is always read.
    """
    text = dump(binary, "-res-usage")
    usage = _USAGE.search(text)
    assert usage, f"no resource usage in cuobjdump's answer: {text[:200]}"
    registers, stack_bytes = map(int, usage.groups())
    text = dump(binary, "-sass") if with_code or stack_bytes else ""
    found = [(int(place, 16), name, operands) for place, name, operands in _INSTRUCTION.findall(text)]
    loops = find_loops(found)
    return Resources(
        kernel=kernel,
        architecture=architecture,
        num_warps=num_warps,
        registers=registers,
        stack_bytes=stack_bytes,
        shared_bytes=shared_bytes,
        instructions=dict(Counter(name for _, name, _ in found)),
        early_prefetches=count_early([name.split(".")[0] for _, name, _ in found]),
        loop_instructions=dict(Counter(name for place, name, _ in found if any(place in loop for loop in loops))),
    )


def count_early(names: list[str]) -> int:
    """Prefetches in front of the wait."""
    return names[: names.index(WAIT)].count(PREFETCH) if WAIT in names else 0


def find_loops(instructions: Iterable[tuple[int, str, str]]) -> list[range]:
    """Addresses of loops: from where a branch leads back to, up to it.

    Args:
        instructions: address, name and operands of each.
    """
    loops = []
    for place, name, operands in instructions:
        target = _TARGET.search(operands) if name.split(".")[0] == "BRA" else None
        if target and int(target[1], 16) < place:  # the branch to itself behind a kernel's end is none
            loops.append(range(int(target[1], 16), place + 1))
    return loops


@cache
def dump(binary: bytes, what: str) -> str:
    """Resource usage or machine code, as text; launches of one shape often differ in their grid alone.

    It is kept beside the binaries that Triton keeps: machine code takes half a second to read.

    Raises:
        FileNotFoundError: Triton came without NVIDIA's tools.
    """
    tool = _cuobjdump()
    key = sha256(f"{tool} {Path(tool).stat().st_mtime_ns} {what} ".encode() + binary).hexdigest()
    kept = Path(triton.knobs.cache.dir) / f"{key}.dump"
    if kept.exists():
        return kept.read_text()
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary)
        found = subprocess.run([tool, what, cubin], check=True, capture_output=True, text=True).stdout
        written = Path(folder) / "dump"
        written.write_text(found)
        written.rename(kept)
    return found


def _cuobjdump() -> str:
    try:
        return str(triton.knobs.nvidia.cuobjdump.path)
    except RuntimeError as error:
        remedy = "install Triton's own wheel for Linux, or set TRITON_CUOBJDUMP_PATH to that of a CUDA toolkit"
        raise FileNotFoundError(f"this Triton came without NVIDIA's cuobjdump: {remedy}") from error
