"""Returns the memory of slots that no row reads any more to the system, and records which slots are left.

Legend: L layers, S slots.
"""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor


class SlidingSlots:
    """The slots of layers in which a row reads only the slots of the text from a certain one on, such as a window.

    So the memory of slots before that one, less a margin, is returned while the text grows. This is done between
    passes, and kernels need no change for it: a slot without memory reads as zero, and no row reads it.

    Invariant: these layers hold the text from `whole_from` on. The number is raised before memory is returned.

    Args:
        storage: [kinds, L, S, ...], the cache's.
        pages: its memory; None: memory cannot be returned, as on a GPU.
        layers: the layers that slide, of those in the storage.
        first_read: the first slot that the row at a position of the text reads.
        margin: slots before that one which are kept, so that a text can be cut back and resumed.
        step: slots whose memory is returned at once.
    """

    def __init__(
        self,
        storage: Tensor,
        pages: mmap.mmap | None,
        *,
        layers: Sequence[int],
        first_read: Callable[[int], int],
        margin: int,
        step: int,
    ) -> None:
        self._pages = pages
        self._storage = storage
        self._sliding = () if pages is None else tuple(layers)
        self.full_layers = tuple(layer for layer in range(storage.shape[1]) if layer not in self._sliding)
        self._first_read = first_read
        self._margin = margin
        self._step = step
        self.whole_from = 0

    def is_whole(self, length: int, whole_from: int) -> bool:
        """Whether a text of this length can be resumed if these layers hold it from `whole_from` on."""
        return whole_from <= max(0, self._first_read(length))

    def pass_by(self, length: int) -> None:
        """Return the memory of the slots that a text of this length no longer needs."""
        self.lose((self._first_read(length) - self._margin) // self._step * self._step)

    def lose(self, end: int) -> None:
        """Return the memory of the slots before `end`."""
        start = self.whole_from
        if self._sliding and end > start:
            self.whole_from = end
            self._give_back(start, end)

    def clear(self) -> None:
        """No text is left: all slots can be written again."""
        if self.whole_from and self._sliding:
            self._give_back(0, self._storage.shape[2])
        self.whole_from = 0

    def begin_at(self, slot: int) -> None:
        """The text was restored in these layers from this slot on."""
        self.whole_from = slot

    def _give_back(self, start: int, end: int) -> None:
        """Return the pages that hold only slots before `end`; those before `start` were returned earlier."""
        assert self._pages is not None, "slots are lost only where their pages can be returned"
        num_kinds, num_layers, num_slots = self._storage.shape[:3]
        size = mmap.PAGESIZE
        slot = self._storage[0, 0, 0].numel() * self._storage.element_size()
        for part in (kind * num_layers + layer for kind in range(num_kinds) for layer in self._sliding):
            first = part * num_slots * slot
            begin = max(-(-first // size), (first + start * slot) // size) * size
            num_bytes = (first + end * slot) // size * size - begin
            if num_bytes > 0:
                with suppress(OSError):  # memory that the process has locked stays
                    self._pages.madvise(mmap.MADV_DONTNEED, begin, num_bytes)


def zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: str) -> tuple[Tensor, mmap.mmap | None]:
    """A tensor of zeros, and its pages if they can be returned to the system one by one. On a CPU it takes memory page
    by page, when it is written to."""
    if torch.device(device).type != "cpu" or not prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device), None
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=dtype).view(shape), pages if hasattr(mmap, "MADV_DONTNEED") else None
