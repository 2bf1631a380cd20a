"""An exchange between the ranks of a model: each fills a place in its own memory, sets flags, and reads all places.

Every rank has two places, used in turn, and for each program of a kernel and each rank a flag: the number of the last
exchange that this rank has filled its place for. Flags lie where they are waited for, so that waiting costs no traffic
between GPUs. A program that begins exchange e has seen that all ranks began e - 1, which they did after their kernel of
e - 2 had ended: the place that e - 2 was read from is free, and one wait for each exchange is enough. A program meets
only its like on the other ranks, so that no program waits for another one of its own GPU; all programs of a kernel that
meets must fit on the GPU together, which some hundred small ones do.

Numbers of exchanges are kept on the device and count on by themselves: a recorded kernel meets anew each time it is
replayed. They may overflow, as only differences count.

Source: the one-shot all-reduce of TensorRT-LLM and vLLM; flags with release and acquire at the scope of the system as
in torch.distributed._symmetric_memory. Unlike vLLM's it has two places instead of a second wait, unlike torch's numbers
that nobody resets, and waiting ends.

Legend: N ranks, P programs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import launch_options

POLLS_PER_LOOK = tl.constexpr(256)  # at the host's memory, which takes longer than a poll, some 0.2 ms


class Peers(NamedTuple):
    """The ranks' memory as kernels access it.

    Args:
        addresses: int64 [N], where the memory of each rank lies for this device.
        exchanges: int32 [P], how many each program has been through.
        lost: int32 [1] in the host's memory: other than 0, nobody waits any longer. A program that has waited in vain
            sets it.
        known_lost: int32 [1], the same as the programs here have read it.
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
        """Room for this many bytes at a place."""
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
        """Where a rank's part of an exchange lies, uint8."""
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
            # Threads may read different values, and have to leave the loop together: what the atomic operation gives
            # is the same for all of a program.
            if tl.atomic_max(peers.known_lost, tl.load(peers.lost, volatile=True)) != 0:
                num_polls = most_polls
    if most_behind > 0:
        tl.store(peers.lost, 1)
    tl.store(peers.exchanges + tl.program_id(0), exchange)
    tl.debug_barrier()  # What the polling threads have seen, all threads of the program have.
    return exchange


@triton.jit
def place_in(address, exchange, like, SHAPE: tl.constexpr):
    """Where the part of an exchange lies in the memory at this address, a pointer to the same type as `like`."""
    place = address + SHAPE.first_place + (exchange & 1) * SHAPE.place_bytes
    return tl.multiple_of(place.to(like.dtype), 16)
