"""A rank group on torch.distributed: gloo between CPUs, NCCL between GPUs.

The group is a separate object, not torch's default group of the process, so that one process may have two engines.

Legend: T rows, H hidden size, N columns of one rank.
"""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed

from forerun.core.errors import RankLostError
from forerun.model.rank_group import sum_in_order

LOOPBACK: Final = "127.0.0.1"  # without ranks on other hosts, no port is open to them
MEETING_S: Final = 60.0  # time for all ranks to connect after they are ready
DEADLINE_S: Final = 60.0  # of one exchange: a slower rank, for example a stopped one, counts as lost


def unknown() -> None:
    """The default of `blame`: no lost rank is known."""


class TorchGroup:
    """See `model.rank_group.RankGroup`.

    Args:
        store: a torch.distributed.Store, through which the ranks connect.
        device: of the tensors that are exchanged.
        address: of the interface on which CPUs exchange tensors.
        blame: returns which rank was lost and why, if this process knows more than torch.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        num_ranks: int,
        *,
        device: str,
        address: str = LOOPBACK,
        blame: Callable[[], str | None] = unknown,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._blame = blame
        self._is_lost = False
        self._group = open_group(store, rank, num_ranks, device, address)

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        return sum_in_order(self._exchange(partial_TH), residual_TH)

    def join_columns(self, part_TN: Tensor) -> Tensor:
        return torch.cat(self._exchange(part_TN), 1)

    def lose(self) -> None:
        self._is_lost = True  # torch ends exchanges that are waiting now

    def _exchange(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, in rank order."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.num_ranks)]
        if self._is_lost:
            raise RankLostError(self._blame() or f"rank {self.rank} of {self.num_ranks} has lost another one")
        try:
            self._group.allgather([parts], [part]).wait()
        except RuntimeError as error:  # torch raises it for a lost rank and for a late one
            reason = self._blame() or f"rank {self.rank} of {self.num_ranks} lost another one: {error}"
            raise RankLostError(reason) from error
        return parts


def open_group(store: Any, rank: int, num_ranks: int, device: str, address: str) -> Any:
    """Connect with the other ranks."""
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
    """torch's TCPStore class, which its stubs omit. It is looked up on use, because some builds lack it."""
    return vars(distributed)["TCPStore"]


def host_store(num_ranks: int, address: str = LOOPBACK) -> Any:
    """The store through which the ranks connect, on a port of this interface that the system chooses.

    Its attribute `port` is that port.
    """
    listener = socket.create_server((address, 0), family=family_of(address))
    return tcp_store()(
        address,
        listener.getsockname()[1],
        num_ranks,
        is_master=True,
        master_listen_fd=listener.detach(),
        wait_for_workers=False,
        timeout=timedelta(seconds=MEETING_S),
        use_libuv=True,
    )


def join_store(address: str, port: int, num_ranks: int) -> Any:
    """Connect to the store from another rank."""
    return tcp_store()(
        address, port, num_ranks, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=MEETING_S)
    )


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
