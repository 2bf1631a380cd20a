"""The GPU memory needed to open Llama-3-70B, counted on device "meta" with the code that opens it on a GPU.

    PYTHONPATH=. .venv/bin/python -m benchmarks.opening_memory --weights int4 --layers 80

Every storage is counted from the operator that makes it until its last reference goes. Each size is also given to a
model of torch's caching allocator (best fit, blocks split and joined, segments kept), which says what it would reserve.
"""

import argparse
from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import get_args

import torch

from benchmarks.gpu.models import LLAMA_70B
from forerun.backends.gpu.backend import TRITON
from forerun.core.model_spec import WeightFormat
from forerun.model import quantise
from tests.storage_bytes import StorageBytes
from tests.unread_weights import open_unread

MIB = 1 << 20
GB = 1_000_000_000
UNIT = 512  # bytes; every request is rounded up to it
SMALL_SEGMENT, MIDDLE_SEGMENT, SEGMENT_UNIT = 2 * MIB, 20 * MIB, 2 * MIB
SMALL_REQUEST, MIDDLE_REQUEST = MIB, 10 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, between two others."""

    size: int
    is_small: bool
    is_free: bool = True
    before: "Block | None" = None
    behind: "Block | None" = None


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """A model of the sizes in torch's GPU allocator (c10/cuda/CUDACachingAllocator.cpp, default settings)."""

    reserved: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _blocks: dict[int, Block] = field(default_factory=dict)

    def take(self, num_bytes: int) -> Block:
        size = max(UNIT, -(-num_bytes // UNIT) * UNIT)
        is_small = size <= SMALL_REQUEST
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        block = self._blocks.pop(free.pop(place)[1]) if place < len(free) else self._segment(size, is_small)
        left = block.size - size
        if left >= UNIT if is_small else left > SMALL_REQUEST:
            rest = Block(size=left, is_small=is_small, before=block, behind=block.behind)
            if block.behind is not None:
                block.behind.before = rest
            block.size, block.behind = size, rest
            self._keep(rest)
        block.is_free = False
        return block

    def give_back(self, block: Block) -> None:
        for neighbour in (block.before, block.behind):
            if neighbour is None or not neighbour.is_free:
                continue
            self._drop(neighbour)
            first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
            first.size, first.behind = first.size + second.size, second.behind
            if second.behind is not None:
                second.behind.before = first
            block = first
        block.is_free = True
        self._keep(block)

    def _segment(self, size: int, is_small: bool) -> Block:
        total = SMALL_SEGMENT if is_small else MIDDLE_SEGMENT
        if size >= MIDDLE_REQUEST:
            total = -(-size // SEGMENT_UNIT) * SEGMENT_UNIT
        self.reserved += total
        return Block(size=total, is_small=is_small)

    def _keep(self, block: Block) -> None:
        insort(self._free[block.is_small], (block.size, id(block)))
        self._blocks[id(block)] = block

    def _drop(self, block: Block) -> None:
        free = self._free[block.is_small]
        free.pop(bisect_left(free, (block.size, id(block))))
        del self._blocks[id(block)]


class AllocatedBytes(StorageBytes):
    """Counts storages, and places each in the allocator's memory too."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.allocator = CachingAllocator()
        self._taken: dict[int, Block] = {}

    def made(self, place: int, num_bytes: int) -> None:
        if num_bytes:
            self._taken[place] = self.allocator.take(num_bytes)

    def gone(self, place: int) -> None:
        if place in self._taken:
            self.allocator.give_back(self._taken.pop(place))


def main() -> None:
    parser = argparse.ArgumentParser(description="What opening Llama-3-70B takes on a GPU.")
    parser.add_argument("--weights", choices=get_args(WeightFormat), default="int4")
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--capacity", type=int, default=8192, help="Tokens of the cache.")
    parser.add_argument("--rounded-at-once", type=int, default=quantise.ELEMENTS_PER_BLOCK, help="Elements.")
    args = parser.parse_args()
    quantise.ELEMENTS_PER_BLOCK = args.rounded_at_once
    spec, began = replace(LLAMA_70B, num_layers=args.layers), perf_counter()
    with AllocatedBytes("meta") as counted:
        runner = open_unread(spec, args.weights, backend=TRITON, capacity=args.capacity)
    cache = runner.cache.storage_2LSKD.nbytes
    print(f"torch {torch.__version__}, {args}, {perf_counter() - began:.0f} s")
    print(f"the cache {cache / GB:.2f} GB; without it:")
    print(
        f"open {(counted.live - cache) / GB:.2f} GB, at the peak {(counted.peak - cache) / GB:.2f} ({counted.peak_at})"
    )
    print(f"reserved by the allocator, as modelled: {(counted.allocator.reserved - cache) / GB:.2f} GB")


if __name__ == "__main__":
    main()
