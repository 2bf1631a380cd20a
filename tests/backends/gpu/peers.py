"""Ranks that exchange what they computed in memory that all have: of one process and device, or of real processes.

Legend: T rows, H hidden size.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from forerun.backends.gpu.passes.add_partials import num_tiles_of
from forerun.backends.gpu.passes.exchange import Exchange, MemoryShape, Peers
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.sharding.torch_group import host_store, join_store

ResultT = TypeVar("ResultT")
MOST_ROWS = 40
MOST_POLLS = 300  # a test that waits in vain does so for a fraction of a second


def local_exchanges(num_ranks: int, size: int, dtype: torch.dtype, device: str) -> list[Exchange]:
    """Every rank's end of an exchange of rows of this many features, all on one device."""
    shape = MemoryShape.of(
        num_ranks=num_ranks, num_programs=num_tiles_of(size), place_bytes=MOST_ROWS * size * dtype.itemsize
    )
    memories = tuple(torch.zeros(shape.num_bytes, dtype=torch.uint8, device=device) for _ in range(num_ranks))
    addresses = torch.tensor([memory.data_ptr() for memory in memories], device=device)
    counts = torch.zeros(num_tiles_of(size), dtype=torch.int32, device=device)
    lost = torch.zeros(1, dtype=torch.int32, pin_memory=device != "cpu")
    peers = Peers(addresses=addresses, exchanges=counts, lost=lost)
    return [
        Exchange(
            rank=rank,
            memories=memories,
            peers=peers._replace(exchanges=counts.clone(), lost=lost.clone().pin_memory() if device != "cpu" else lost.clone()),
            shape=shape,
            most_polls=MOST_POLLS,
        )
        for rank in range(num_ranks)
    ]


def begin_at(exchanges: list[Exchange], number: int) -> None:
    """As if this many exchanges had been."""
    for one in exchanges:
        one.peers.exchanges.fill_(number)
        flags_of(one).fill_(number)


def flags_of(exchange: Exchange) -> Tensor:
    """int32 [programs, ranks], which the other ranks write to."""
    num_flags = len(exchange.peers.exchanges) * exchange.shape.num_ranks
    flags = exchange.memories[exchange.rank][: 4 * num_flags].view(torch.int32)
    return flags.view(-1, exchange.shape.num_ranks)


def fill_place(exchange: Exchange, number: int, partial_TH: Tensor) -> None:
    """As the kernel before the exchange of this number does."""
    bytes_B = partial_TH.contiguous().view(-1).view(torch.uint8)
    exchange.place(exchange.rank, number)[: len(bytes_B)].copy_(bytes_B)


def run_ranks(num_ranks: int, device: str, work: Callable[..., ResultT], *arguments: Any) -> list[ResultT]:
    """What work(group, *arguments) gives on every rank, each a process of its own."""
    store = host_store(num_ranks)
    with ProcessPoolExecutor(num_ranks, multiprocessing.get_context("spawn")) as pool:
        ranks = [
            pool.submit(_run_rank, store.port, rank, num_ranks, device, work, arguments) for rank in range(num_ranks)
        ]
        return [rank.result() for rank in ranks]


def _run_rank(port: int, rank: int, num_ranks: int, device: str, work: Callable[..., ResultT], arguments: Any) -> ResultT:
    torch.set_num_threads(1)
    where = device if device == "cpu" else f"{device}:{rank}"
    return work(PeerGroup(join_store(port, num_ranks), rank, num_ranks, device=where), *arguments)
