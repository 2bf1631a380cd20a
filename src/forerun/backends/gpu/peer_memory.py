"""Memory on each rank's GPU that the GPUs of the other ranks can read and write: torch's symmetric memory.

Only torch's mapping is used; `passes.exchange` exchanges data and waits. If kernels are emulated, ranks are processes
on one CPU that map each other's files.

Source: torch.distributed._symmetric_memory (torch 2.8 and later), which exports an allocation of CUDA's virtual memory
to the processes of a group. The memory exists as long as any process has it mapped.
"""

import os
import weakref
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import torch
from torch import Tensor, distributed

from forerun.backends.gpu.kernel_parts import on_device

NAME: Final = "forerun ranks"  # name of groups, and of the mapped files in emulation
SYMMETRIC: Final = "CUDASymmetricMemory/"  # prefix of torch's keys
STORE: Final[Any] = vars(distributed).get("Store", object)  # some builds lack it


class StoreOfOneGroup(STORE):  # type: ignore[misc]  # see STORE
    """A store that renumbers torch's keys within this group.

    torch numbers exchanges over all groups of a process, so a process that had an earlier group would use other keys
    than the rest. "CUDASymmetricMemory/3/0" becomes "CUDASymmetricMemory/0/0".
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store
        self._numbers = dict[str, int]()

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._own(key), value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(self._own(key)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def add(self, key: str, value: int) -> int:
        return int(self._store.add(self._own(key), value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        own = [self._own(key) for key in keys]
        self._store.wait(own) if timeout is None else self._store.wait(own, timeout)

    def _own(self, key: str) -> str:
        before, _, rest = key.partition(SYMMETRIC)
        number, _, behind = rest.partition("/")
        return f"{before}{SYMMETRIC}{self._numbers.setdefault(number, len(self._numbers))}/{behind}" if rest else key


class PeerMemory:
    """Opens memories for the ranks of one group, which must all open them in the same order.

    Args:
        store: the store through which the ranks find each other.
    """

    def __init__(self, store: Any, rank: int, num_ranks: int, *, device: torch.device) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._device = device
        self._num_opened = 0
        if device.type == "cuda":
            own = StoreOfOneGroup(store)
            self._held = own, distributed.ProcessGroup(own, rank, num_ranks)  # the latter has no reference to Python's
            if rank == 0:
                store.set(NAME, f"{NAME} {uuid4()}")
            self._name = store.get(NAME).decode()  # the same on all ranks, and of no other group of any of them
            names: Any = torch._C._distributed_c10d
            names._register_process_group(self._name, self._held[1])
            weakref.finalize(self, names._unregister_process_group, self._name)

    def open(self, num_bytes: int) -> tuple[Tensor, ...]:
        """The memory of every rank as mapped on this rank's device, uint8 zeros. Returns once all ranks have mapped it.

        Raises:
            RuntimeError: torch cannot map the other ranks' memory.
        """
        self._num_opened += 1
        return self._symmetric(num_bytes) if self._device.type == "cuda" else self._emulated(num_bytes)

    def _symmetric(self, num_bytes: int) -> tuple[Tensor, ...]:
        symmetric = torch._C._distributed_c10d._SymmetricMemory
        with on_device(self._device):
            memory = symmetric.empty_strided_p2p((num_bytes,), (1,), torch.uint8, self._device)
            memory.zero_()
            torch.cuda.synchronize(self._device)  # Others may write to it as soon as they have it.
            try:
                handle = symmetric.rendezvous(memory, self._name)
            except RuntimeError as error:
                if "no group info" not in str(error):
                    raise
                # Earlier versions look in a table of their own instead of the registered groups.
                symmetric.set_group_info(self._name, self._rank, self._num_ranks, self._held[0])
                handle = symmetric.rendezvous(memory, self._name)
        others = (handle.get_buffer(rank, (num_bytes,), torch.uint8) for rank in range(self._num_ranks))
        return tuple(memory if rank == self._rank else other for rank, other in enumerate(others))

    def _emulated(self, num_bytes: int) -> tuple[Tensor, ...]:
        keys = [f"{NAME} {self._num_opened} {rank}" for rank in range(self._num_ranks)]
        descriptor = os.memfd_create(NAME)
        try:
            os.ftruncate(descriptor, num_bytes)
            self._store.set(keys[self._rank], f"/proc/{os.getpid()}/fd/{descriptor}")
            paths = [self._store.get(key).decode() for key in keys]
            memories = tuple(torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8) for path in paths)
            self._store.set(f"{keys[self._rank]} mapped", "")
            self._store.wait([f"{key} mapped" for key in keys])
        finally:
            os.close(descriptor)
        return memories
