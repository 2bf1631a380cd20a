"""Ranks on one host that exchange partial results through shared memory.

Legend: T rows, H hidden size, N columns of one rank.
"""

import mmap
import os
import weakref
from collections.abc import Callable
from ctypes import addressof, c_char
from typing import Final

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.core.errors import RankLostError
from forerun.model.rank_group import sum_in_order

PLACE_BYTES: Final = 1 << 20  # per rank and exchange: 16 rows of 16,384 floats; more data takes several exchanges
DEADLINE_S: Final = 60.0  # of one exchange; a rank that takes longer, such as a stopped process, counts as lost


def shared_memory(num_ranks: int) -> int:
    """File descriptor of a group's shared memory. Any process that has it can join the group."""
    descriptor = os.memfd_create("forerun ranks")
    os.ftruncate(descriptor, library().forerun_link_bytes(num_ranks, PLACE_BYTES))
    return descriptor


class HostGroup:
    """See `model.rank_group.RankGroup`. The CPU kernels add partials during a pass, through `link`.

    Args:
        descriptor: see `shared_memory`.
        blame: gives a message about which rank was lost and how, or None if this process does not know.
    """

    def __init__(
        self, descriptor: int, rank: int, num_ranks: int, *, blame: Callable[[], str | None] = lambda: None
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._blame = blame
        self._memory = mmap.mmap(descriptor, library().forerun_link_bytes(num_ranks, PLACE_BYTES))
        start = addressof(c_char.from_buffer(self._memory))
        self.link: int = library().forerun_link_new(start, rank, num_ranks, PLACE_BYTES, DEADLINE_S)
        end = weakref.finalize(self, library().forerun_link_free, self.link)
        end.atexit = False  # at exit the ranks end after it would run, and the thread that sees them end calls `lose`

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        return sum_in_order(self._gather(partial_TH), residual_TH)

    def join_columns(self, part_TN: Tensor) -> Tensor:
        return torch.cat(self._gather(part_TN), 1)

    def lose(self) -> None:
        """Mark a rank as lost, so that all ranks stop waiting."""
        library().forerun_link_lose(self.link)

    def require_all(self) -> None:
        """Raise RankLostError if a rank was lost; results computed since then are invalid."""
        if library().forerun_link_is_lost(self.link):
            raise RankLostError(self._blame() or f"rank {self.rank} of {self.num_ranks} lost another one")

    def _gather(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, in rank order."""
        part = part.contiguous()
        parts = part.new_empty(self.num_ranks, *part.shape)
        num_bytes = part.numel() * part.element_size()
        library().forerun_link_gather(self.link, part.data_ptr(), num_bytes, parts.data_ptr())
        self.require_all()
        return list(parts)
