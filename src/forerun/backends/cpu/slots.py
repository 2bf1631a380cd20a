"""Rows of a cache from slot to slot, in one call for all layers."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.sampler import address


def move_slots(storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
    """Copy slots `sources` to start, start + 1, ..., as if all were read before the first is written."""
    slots = np.array(sources, np.int64)
    num_parts, element_bytes = storage_2LSKD.shape[0] * storage_2LSKD.shape[1], storage_2LSKD.element_size()
    library().forerun_move_slots(
        storage_2LSKD.data_ptr(), num_parts, storage_2LSKD.stride(1) * element_bytes,
        storage_2LSKD.stride(2) * element_bytes, address(slots), len(slots), start,
    )  # fmt: skip
