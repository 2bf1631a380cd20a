"""Kernels compiled as if they were to run, by calling what launches them. No GPU is needed."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP_SIZE: Final = 32
KIB: Final = 1024
# Bytes that one program may have, by architecture: 86 are RTX 30 and A10, 89 RTX 40 and L4, 100 Blackwell, 120 RTX 50.
SHARED_LIMITS: Final = {80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
MOST_THREADS: Final = 1024

_device_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch as it would have been: what was compiled for it, and its number of programs."""

    kernel: str
    architecture: int
    num_programs: int
    num_warps: int
    shared_bytes: int
    overlaps: bool
    binary: bytes


class CompilingDriver:
    """In the place of Triton's driver: kernels are compiled for an architecture as if they were to run, and do not run.

    Tensors may be anywhere, also on the meta device: of theirs only dtypes and the alignment of addresses count.
    """

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture
        self.launches: list[Launch] = []
        self.utils = self
        # Triton keeps what it compiled for a device, together with the driver of that time.
        self._device = next(_device_numbers)

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, WARP_SIZE)

    def get_device_properties(self, _device: int) -> dict[str, int]:
        """As on a GPU, Triton refuses a kernel that takes more."""
        return {"max_shared_mem": SHARED_LIMITS[self.architecture]}

    def load_binary(self, _name: str, binary: bytes, _shared_bytes: int, _device: int) -> tuple[Any, ...]:
        """Module, function, registers, spills, most threads of a program. The function is what `launch` gets."""
        return None, binary, 0, 0, MOST_THREADS

    def launcher_cls(self, _source: ASTSource, metadata: Any) -> Callable[..., None]:
        """What Triton calls to launch a kernel."""

        def launch(columns: int, rows: int, layers: int, _stream: int, binary: bytes, *_rest: Any) -> None:
            launched = Launch(
                kernel=metadata.name,
                architecture=self.architecture,
                num_programs=columns * rows * layers,
                num_warps=metadata.num_warps,
                shared_bytes=metadata.shared,
                overlaps=metadata.launch_pdl,
                binary=binary,
            )
            self.launches.append(launched)

        return launch


@contextmanager
def compiling(architecture: int) -> Iterator[list[Launch]]:
    """Kernels that are launched within are compiled instead; the list gains each launch."""
    assert not triton.knobs.runtime.interpret, "Triton's interpreter compiles nothing: unset TRITON_INTERPRET"
    driver = CompilingDriver(architecture)
    triton.runtime.driver.set_active(driver)
    try:
        yield driver.launches
    finally:
        triton.runtime.driver.set_active(None)  # the next one who asks finds the real one, if there is one
