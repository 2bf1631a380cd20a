"""A rank group on torch.distributed: gloo between CPUs, NCCL between GPUs.

The group is an object of its own and never the process's default group, so that two engines may live in one process.

Legend: T rows, H hidden size, N columns of one rank.
"""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed

from forerun.core.errors import RankLostError
from forerun.sharding.sums import sum_in_order

LOOPBACK: Final = "127.0.0.1"  # never a port that other hosts can reach, where no rank is on another host
MEETING_S: Final = 60.0  # for all ranks, which have said that they are ready, to find each other
DEADLINE_S: Final = 60.0  # of one exchange: a rank that is later counts as lost, such as one that was stopped


def unknown() -> None:
    """Nobody to blame is known here."""


class TorchGroup:
    """See `model.rank_group.RankGroup`.

    Args:
        store: where the ranks find each other, a torch.distributed.Store.
        device: of the tensors that are exchanged.
        address: of the interface on which CPUs exchange what they computed.
        blame: who was lost and how, as far as this process knows more than torch.
    """

    def __init__(
        self, store: Any, rank: int, num_ranks: int, *, device: str, address: str = LOOPBACK,
        blame: Callable[[], str | None] = unknown,
    ) -> None:  # fmt: skip
        self.rank, self.num_ranks, self._blame, self._is_lost = rank, num_ranks, blame, False
        self._group = open_group(store, rank, num_ranks, device, address)

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        return sum_in_order(self._exchange(partial_TH), residual_TH)

    def join_columns(self, part_TN: Tensor) -> Tensor:
        return torch.cat(self._exchange(part_TN), 1)

    def lose(self) -> None:
        self._is_lost = True  # what waits now, torch ends by itself

    def _exchange(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, in their order."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.num_ranks)]
        if self._is_lost:
            raise RankLostError(self._blame() or f"rank {self.rank} of {self.num_ranks} has lost another one")
        try:
            self._group.allgather([parts], [part]).wait()
        except RuntimeError as error:  # what torch has for a rank that went, and for one that is late
            reason = self._blame() or f"rank {self.rank} of {self.num_ranks} lost another one: {error}"
            raise RankLostError(reason) from error
        return parts


def open_group(store: Any, rank: int, num_ranks: int, device: str, address: str) -> Any:
    """Meet the others."""
    is_cuda = torch.device(device).type == "cuda"
    kind: Any = distributed.ProcessGroupNCCL if is_cuda else distributed.ProcessGroupGloo
    options = kind.Options() if is_cuda else kind._Options()
    options._timeout = timedelta(seconds=DEADLINE_S)
    if is_cuda:
        torch.cuda.set_device(device)
    else:
        options._devices = [kind.create_device(hostname=address)]
    return kind(store, rank, num_ranks, options)


def tcp_store() -> Any:
    """torch's class of that name, which its stubs leave out; looked up when it is needed, as some builds lack it."""
    return vars(distributed)["TCPStore"]


def host_store(num_ranks: int, address: str = LOOPBACK) -> Any:
    """Where the ranks find each other: on a port of this interface that the system chose.

    `port` says which.
    """
    listener = socket.create_server((address, 0), family=family_of(address))
    return tcp_store()(
        address, listener.getsockname()[1], num_ranks, is_master=True, master_listen_fd=listener.detach(),
        wait_for_workers=False, timeout=timedelta(seconds=MEETING_S), use_libuv=True,
    )  # fmt: skip


def join_store(address: str, port: int, num_ranks: int) -> Any:
    """The same, from the others' side."""
    return tcp_store()(
        address, port, num_ranks, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=MEETING_S)
    )


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
