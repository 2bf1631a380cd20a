"""Gives the memory of slots that no window reaches any more back to the system, and knows which slots are left.

Legend: L layers, S slots, K key/value heads, D head size.
"""

import mmap
from contextlib import suppress

from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.core.sliding import MARGIN, STEP


class SlidingSlots:
    """The slots of the layers with a window. A row reads the `window` slots up to its own there, and none before.

    So the slots behind the window, and a margin, give up their memory while the text grows. It is done between passes,
    and kernels know nothing of it: a slot without memory reads as zero, and windows hide it from every row.

    Invariant: these layers hold the text from `whole_from` on. The number is raised before memory is given back.

    Args:
        pages: the memory of the cache; None: nothing can be given back, as on a GPU.
    """

    def __init__(self, spec: ModelSpec, storage_2LSKD: Tensor, pages: mmap.mmap | None) -> None:
        layers = range(spec.num_layers)
        self._pages, self._storage_2LSKD = pages, storage_2LSKD
        self._sliding = () if pages is None else tuple(one for one in layers if spec.window_of(one) is not None)
        self.full_layers = tuple(layer for layer in layers if layer not in self._sliding)
        self._reach = (spec.window or 1) - 1  # slots before its own that a row reads
        self.whole_from = 0

    def is_whole(self, length: int, whole_from: int) -> bool:
        """Whether a text of this length can be resumed if these layers hold it from `whole_from` on."""
        return whole_from <= max(0, length - self._reach)

    def pass_by(self, length: int) -> None:
        """Give back what a text of this length needs no more."""
        self.lose((length - self._reach - MARGIN) // STEP * STEP)

    def lose(self, end: int) -> None:
        """Give back the slots before `end`."""
        start = self.whole_from
        if self._sliding and end > start:
            self.whole_from = end
            self._give_back(start, end)

    def begin_anew(self) -> None:
        """No text is left: all slots can be written again."""
        if self.whole_from:
            self._give_back(0, self._storage_2LSKD.shape[2])
            self.whole_from = 0

    def _give_back(self, start: int, end: int) -> None:
        """Give back the pages that hold no other slots than those before `end`; those before `start` are given back."""
        assert self._pages is not None, "slots are lost only where their pages can be given back"
        num_kinds, num_layers, num_slots = self._storage_2LSKD.shape[:3]
        size, slot = mmap.PAGESIZE, self._storage_2LSKD[0, 0, 0].numel() * self._storage_2LSKD.element_size()
        for part in (kind * num_layers + layer for kind in range(num_kinds) for layer in self._sliding):
            first = part * num_slots * slot
            begin = max(-(-first // size), (first + start * slot) // size) * size
            num_bytes = (first + end * slot) // size * size - begin
            if num_bytes > 0:
                with suppress(OSError):  # memory that the process has locked stays
                    self._pages.madvise(mmap.MADV_DONTNEED, begin, num_bytes)
