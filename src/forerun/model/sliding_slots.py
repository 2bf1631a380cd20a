"""Returns the memory of slots that no window reaches any more to the system, and records which slots are left.

Legend: L layers, S slots, K key/value heads, D head size.
"""

import mmap
from contextlib import suppress

from torch import Tensor

from forerun.core.model_spec import WINDOW_MARGIN, WINDOW_STEP, ModelSpec


class SlidingSlots:
    """The slots of the layers with a window. There a row reads the `window` slots up to its own, and none before them.

    So the memory of slots before the window, less a margin, is returned while the text grows. This is done between
    passes, and kernels need no change for it: a slot without memory reads as zero, and windows hide it from every row.

    Invariant: these layers hold the text from `whole_from` on. The number is raised before memory is returned.

    Args:
        pages: the memory of the cache; None: memory cannot be returned, as on a GPU.
    """

    def __init__(self, spec: ModelSpec, storage_2LSKD: Tensor, pages: mmap.mmap | None) -> None:
        layers = range(spec.num_layers)
        self._pages = pages
        self._storage_2LSKD = storage_2LSKD
        self._sliding = () if pages is None else tuple(one for one in layers if spec.window_of(one) is not None)
        self.full_layers = tuple(layer for layer in layers if layer not in self._sliding)
        self._reach = (spec.window or 1) - 1  # slots before its own that a row reads
        self.whole_from = 0

    def is_whole(self, length: int, whole_from: int) -> bool:
        """Whether a text of this length can be resumed if these layers hold it from `whole_from` on."""
        return whole_from <= max(0, length - self._reach)

    def pass_by(self, length: int) -> None:
        """Return the memory of the slots that a text of this length no longer needs."""
        self.lose((length - self._reach - WINDOW_MARGIN) // WINDOW_STEP * WINDOW_STEP)

    def lose(self, end: int) -> None:
        """Return the memory of the slots before `end`."""
        start = self.whole_from
        if self._sliding and end > start:
            self.whole_from = end
            self._give_back(start, end)

    def clear(self) -> None:
        """No text is left: all slots can be written again."""
        if self.whole_from:
            self._give_back(0, self._storage_2LSKD.shape[2])
            self.whole_from = 0

    def _give_back(self, start: int, end: int) -> None:
        """Return the pages that hold only slots before `end`; those before `start` were returned earlier."""
        assert self._pages is not None, "slots are lost only where their pages can be returned"
        num_kinds, num_layers, num_slots = self._storage_2LSKD.shape[:3]
        size = mmap.PAGESIZE
        slot = self._storage_2LSKD[0, 0, 0].numel() * self._storage_2LSKD.element_size()
        for part in (kind * num_layers + layer for kind in range(num_kinds) for layer in self._sliding):
            first = part * num_slots * slot
            begin = max(-(-first // size), (first + start * slot) // size) * size
            num_bytes = (first + end * slot) // size * size - begin
            if num_bytes > 0:
                with suppress(OSError):  # memory that the process has locked stays
                    self._pages.madvise(mmap.MADV_DONTNEED, begin, num_bytes)
