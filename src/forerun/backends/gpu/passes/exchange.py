"""Exchanges data between the ranks of a model: each rank fills its own buffer, sets flags, and reads all buffers.

Every rank's memory has two buffers (places), which alternate, and one flag for each program of a kernel and each rank.
A flag holds the number of the last exchange for which that rank has filled its place. A rank's flags lie in the memory
of the GPU that polls them, so polling causes no traffic between GPUs. One wait for each exchange is enough: a program
that begins exchange e has seen that all ranks began e - 1, which they do only after their kernel of e - 2 has ended, so
the place that e - 2 used is free. A program waits only for the programs with its number on other ranks, never for
another program on its own GPU. So all programs of such a kernel must run at the same time; about a hundred small ones
do.

Each program counts its exchanges in device memory, so that a recorded CUDA graph uses a new number each time it is
replayed. The numbers may overflow, as only their differences are used.

Source: the one-shot all-reduce of TensorRT-LLM and vLLM; flags with release and acquire at system scope as in
torch.distributed._symmetric_memory. Unlike vLLM's, ours has two places instead of a second wait. Unlike torch's flags,
ours are numbers that are never reset, and the wait has a limit.

Legend: N ranks, P programs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import launch_options

POLLS_PER_LOOK = tl.constexpr(256)  # Polls between two reads of host memory, which is slower: about 0.2 ms.


class Peers(NamedTuple):
    """The ranks' memory as kernels access it.

    Args:
        addresses: int64 [N], the address of each rank's memory on this device.
        exchanges: int32 [P], the number of exchanges that each program has done.
        lost: int32 [1] in host memory; a program whose wait reaches its limit sets it to 1, and then all waits end.
        known_lost: int32 [1], this device's copy of `lost`.
    """

    addresses: Tensor
    exchanges: Tensor
    lost: Tensor
    known_lost: Tensor


class MemoryShape(NamedTuple):
    """The layout of each rank's memory: int32 flags [P, N], then two places.

    Args:
        num_ranks, rank_block: N, and the power of two that holds it.
        first_place, place_bytes: bytes, both multiples of 16.
    """

    num_ranks: int
    rank_block: int
    first_place: int
    place_bytes: int

    @classmethod
    def of(cls, *, num_ranks: int, num_programs: int, place_bytes: int) -> "MemoryShape":
        """A layout with at least `place_bytes` bytes at each place."""
        first_place = -(-4 * num_programs * num_ranks // 256) * 256
        return cls(num_ranks, triton.next_power_of_2(num_ranks), first_place, -(-place_bytes // 256) * 256)

    @property
    def num_bytes(self) -> int:
        """Size of a rank's memory."""
        return self.first_place + 2 * self.place_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankExchange:
    """The memory of all ranks for one kind of exchange.

    Args:
        memories: uint8, each rank's, as this device sees it.
        most_polls: number of polls after which a rank counts as lost.
    """

    rank: int
    memories: tuple[Tensor, ...]
    peers: Peers
    shape: MemoryShape
    most_polls: int

    def place(self, rank: int, exchange: int) -> Tensor:
        """The memory of a rank's part of an exchange, uint8."""
        first = self.shape.first_place + exchange % 2 * self.shape.place_bytes
        return self.memories[rank][first : first + self.shape.place_bytes]


def meet_all(exchange: RankExchange) -> None:
    """Run an exchange that only waits; afterwards all ranks can read what was at this rank's place."""
    meet_kernel[(1,)](
        exchange.peers, exchange.rank, exchange.most_polls, SHAPE=exchange.shape, **launch_options(num_warps=1)
    )


@triton.jit(do_not_specialize=["rank", "most_polls"])
def meet_kernel(peers, rank, most_polls, SHAPE: tl.constexpr):
    """See `meet`."""
    meet(peers, rank, most_polls, SHAPE)


@triton.jit
def meet(peers, rank, most_polls, SHAPE: tl.constexpr):
    """Signal that this rank's place is filled, and wait until all ranks' places are; return the exchange's number.

    The place was filled by an earlier kernel. If a rank is lost, the wait ends too, and the data are invalid.
    """
    NUM_RANKS: tl.constexpr = SHAPE.num_ranks
    ranks_N = tl.arange(0, SHAPE.rank_block)
    is_rank_N = ranks_N < NUM_RANKS
    first_flag = tl.program_id(0) * NUM_RANKS
    exchange = tl.load(peers.exchanges + tl.program_id(0)) + 1
    flags_N = tl.load(peers.addresses + ranks_N, mask=is_rank_N, other=0).to(tl.pointer_type(tl.int32)) + first_flag
    tl.atomic_xchg(flags_N + rank, exchange, mask=is_rank_N, sem="release", scope="sys")
    own_flags = tl.load(peers.addresses + rank).to(tl.pointer_type(tl.int32)) + first_flag
    num_polls = 0
    most_behind = 1
    while (most_behind > 0) & (num_polls < most_polls):
        seen_N = tl.atomic_add(own_flags + ranks_N, 0, mask=is_rank_N, sem="acquire", scope="sys")
        most_behind = tl.max(tl.where(is_rank_N, exchange - seen_N, 0), 0)
        num_polls += 1
        if num_polls % POLLS_PER_LOOK == 0:  # noqa: SIM102  # Triton's `and` computes both sides.
            # Threads may read different values of `lost`, but must leave the loop together. The atomic operation
            # returns the same value to all threads of a program.
            if tl.atomic_max(peers.known_lost, tl.load(peers.lost, volatile=True)) != 0:
                num_polls = most_polls
    if most_behind > 0:
        tl.store(peers.lost, 1)
    tl.store(peers.exchanges + tl.program_id(0), exchange)
    tl.debug_barrier()  # Data that are visible to the polling threads are now visible to all threads of the program.
    return exchange


@triton.jit
def place_in(address, exchange, like, SHAPE: tl.constexpr):
    """A pointer, of the type of `like`, to an exchange's part in the rank's memory that begins at `address`."""
    place = address + SHAPE.first_place + (exchange & 1) * SHAPE.place_bytes
    return tl.multiple_of(place.to(like.dtype), 16)
