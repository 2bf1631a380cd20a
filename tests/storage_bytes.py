"""Bytes of all tensors' storages on a device, as operators make them and as they go."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKED = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)


class StorageBytes(TorchDispatchMode):
    """Counts storages from the operator that returns them until the last reference to them goes. Views have none of
    their own. What an operator allocates and frees within itself is not seen.

    On "meta" tensors have shapes and no values: a question about a value is answered with yes.

    Args of a caller: `live` and `peak` in bytes; `peak_at` is the operator that reached the peak.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._kind = torch.device(device).type
        self._sizes = dict[int, int]()
        self.live = self.peak = 0
        self.peak_at = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED and args[0].is_meta:
            return True
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._kind:
                self._count(leaf.untyped_storage(), str(func))
        return result

    def _count(self, storage: torch.UntypedStorage, made_by: str) -> None:
        place = storage._cdata
        if place in self._sizes:
            return
        self._sizes[place] = storage.nbytes()
        self.live += storage.nbytes()
        self.made(place, storage.nbytes())
        weakref.finalize(storage, self._discount, place)
        if self.live > self.peak:
            self.peak = self.live
            self.peak_at = made_by

    def _discount(self, place: int) -> None:
        self.live -= self._sizes.pop(place)
        self.gone(place)

    def made(self, place: int, num_bytes: int) -> None:
        """A storage at this address; for whoever counts more."""

    def gone(self, place: int) -> None:
        """The storage there has gone."""
