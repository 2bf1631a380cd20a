"""Ranks that exchange what they computed in memory that all have: of one process and device, or of real processes.

Legend: T rows, H hidden size.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from forerun.backends.gpu import peer_group
from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.exchange import MemoryShape, Peers, RankExchange
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.sharding.torch_group import LOOPBACK, host_store, join_store
from tests.backends.gpu.emulation import spare_idle_work

ResultT = TypeVar("ResultT")
MOST_ROWS = 40
MOST_POLLS = 300  # a test that waits in vain does so for a fraction of a second


def local_exchanges(num_ranks: int, size: int, dtype: torch.dtype, device: str) -> list[RankExchange]:
    """Every rank's end of an exchange of rows of this many features, all on one device."""
    shape = MemoryShape.of(
        num_ranks=num_ranks, num_programs=num_tiles_of(size), place_bytes=MOST_ROWS * size * dtype.itemsize
    )
    memories = tuple(torch.zeros(shape.num_bytes, dtype=torch.uint8, device=device) for _ in range(num_ranks))
    return [local_exchange(rank, memories, shape, num_tiles_of(size)) for rank in range(num_ranks)]


def local_exchange(rank: int, memories: tuple[Tensor, ...], shape: MemoryShape, num_programs: int) -> RankExchange:
    """One rank's end."""
    device = memories[0].device

    def zeros(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=device)

    peers = Peers(
        addresses=torch.tensor([memory.data_ptr() for memory in memories], device=device),
        exchanges=zeros(num_programs),
        lost=torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda"),
        known_lost=zeros(1),
    )
    return RankExchange(rank=rank, memories=memories, peers=peers, shape=shape, most_polls=MOST_POLLS)


def begin_at(exchanges: list[RankExchange], number: int) -> None:
    """As if this many exchanges had been."""
    for one in exchanges:
        one.peers.exchanges.fill_(number)
        flags_of(one).fill_(number)


def flags_of(exchange: RankExchange) -> Tensor:
    """int32 [programs, ranks], which the other ranks write to."""
    num_flags = len(exchange.peers.exchanges) * exchange.shape.num_ranks
    flags = exchange.memories[exchange.rank][: 4 * num_flags].view(torch.int32)
    return flags.view(-1, exchange.shape.num_ranks)


def fill_place(exchange: RankExchange, number: int, partial_TH: Tensor) -> None:
    """As the kernel before the exchange of this number does."""
    bytes_B = partial_TH.contiguous().view(-1).view(torch.uint8)
    exchange.place(exchange.rank, number)[: len(bytes_B)].copy_(bytes_B)


def run_ranks(
    num_ranks: int, device: str, work: Callable[..., ResultT], *arguments: Any, constants: dict[str, int] | None = None
) -> list[ResultT]:
    """What work(group, *arguments) gives on every rank, each a process of its own and on GPUs a device of its own.

    Args:
        constants: of the group's module, to be changed in these processes.
    """
    store = host_store(num_ranks)
    with ProcessPoolExecutor(num_ranks, multiprocessing.get_context("spawn")) as pool:
        places = [(store.port, rank, num_ranks, device if device == "cpu" else f"{device}:{rank}")
                  for rank in range(num_ranks)]  # fmt: skip
        ranks = [pool.submit(run_rank, place, constants or {}, work, arguments) for place in places]
        return [rank.result() for rank in ranks]


def run_rank(
    place: tuple[int, int, int, str], constants: dict[str, int], work: Callable[..., ResultT], arguments: Any
) -> ResultT:
    """One of them, in its process."""
    torch.set_num_threads(1)
    spare_idle_work()
    vars(peer_group).update(constants)
    port, rank, num_ranks, device = place
    return work(PeerGroup(join_store(LOOPBACK, port, num_ranks), rank, num_ranks, device=device), *arguments)
