"""A group of ranks whose kernels add partial sums through each other's memory, within recorded passes.

Legend: T rows, H hidden size, N columns of one rank.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from forerun.backends.gpu.kernel_parts import IS_EMULATED, on_device
from forerun.backends.gpu.passes.exchange import MemoryShape, Peers, RankExchange, meet_all
from forerun.backends.gpu.peer_memory import PeerMemory
from forerun.core.errors import RankLostError
from forerun.model.rank_group import sum_in_order

PLACE_BYTES: Final = 1 << 22  # per exchange outside of passes: logits of 32 rows of 32,768 tokens
# A poll takes about 0.6 us on a GPU and 2 ms in emulation, so a rank counts as lost after about a minute.
MOST_POLLS: Final = 30_000 if IS_EMULATED else 100_000_000


class PeerGroup:
    """See `model.rank_group.RankGroup`. Kernels add partial sums within a pass, through a separate exchange.

    After a wait has timed out or `lose` was called, the results of a rank are meaningless, and `join_columns`, where
    results leave the device, raises an error.

    Args:
        store: a torch.distributed.Store through which the ranks find each other.
        blame: returns which rank was lost and how, as far as this process knows.
    """

    def __init__(
        self, store: Any, rank: int, num_ranks: int, *, device: str, blame: Callable[[], str | None] = lambda: None
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.device = torch.device(device)
        self._blame = blame
        self._memory = PeerMemory(store, rank, num_ranks, device=self.device)
        with on_device(self.device):
            self._lost = torch.zeros(1, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        self._seen_lost = self._lost.numpy()  # the same memory, usable by threads in any torch mode
        self._columns = self.open_exchange(num_programs=1, place_bytes=PLACE_BYTES)
        self._num_gathered = 0

    def open_exchange(self, *, num_programs: int, place_bytes: int) -> RankExchange:
        """Open memory for one kind of exchange; every rank must open the same ones in the same order."""
        shape = MemoryShape.of(num_ranks=self.num_ranks, num_programs=num_programs, place_bytes=place_bytes)
        try:
            memories = self._memory.open(shape.num_bytes)
        except RuntimeError as error:
            reason = (
                self._blame()
                or f'rank {self.rank} cannot reach the memory of the other ranks: set kernels to "torch", which need '
                "no access to it"
            )
            raise RankLostError(f"{reason}: {error}") from error
        peers = Peers(
            addresses=torch.tensor([memory.data_ptr() for memory in memories], device=self.device),
            exchanges=torch.zeros(num_programs, dtype=torch.int32, device=self.device),
            lost=self._lost,
            known_lost=torch.zeros(1, dtype=torch.int32, device=self.device),
        )
        return RankExchange(rank=self.rank, memories=memories, peers=peers, shape=shape, most_polls=MOST_POLLS)

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        return sum_in_order(self._gather(partial_TH), residual_TH)

    def join_columns(self, part_TN: Tensor) -> Tensor:
        return torch.cat(self._gather(part_TN), 1)

    def lose(self) -> None:
        self._seen_lost[0] = 1

    def require_all(self) -> None:
        """Raise RankLostError if a rank is known to be lost; results since then are invalid."""
        if self._seen_lost[0]:
            raise RankLostError(self._blame() or f"rank {self.rank} of {self.num_ranks} lost another one")

    def _gather(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, in rank order."""
        self.require_all()
        bytes_B = part.contiguous().view(-1).view(torch.uint8)
        parts_NB = bytes_B.new_empty(self.num_ranks, len(bytes_B))
        with on_device(self.device):
            for first in range(0, len(bytes_B), PLACE_BYTES):
                turn = bytes_B[first : first + PLACE_BYTES]
                self._num_gathered += 1
                self._columns.place(self.rank, self._num_gathered)[: len(turn)].copy_(turn)
                meet_all(self._columns)
                for rank, whole_B in enumerate(parts_NB):
                    place_B = self._columns.place(rank, self._num_gathered)
                    whole_B[first : first + PLACE_BYTES].copy_(place_B[: len(turn)])
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
        self.require_all()
        return [part_B.view(part.dtype).view(part.shape) for part_B in parts_NB]
