"""CUDA graphs: work on static buffers recorded once, then launched as one."""

from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from forerun.backends.gpu.language import on_device

MAX_GRAPHS = 512  # Graphs kept at a time; the least recently used goes first.

Work = Callable[[], None]


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Do it."""
        ...


class GraphPool:
    """Runs work by key, recorded where there is a GPU; elsewhere every run is an ordinary one.

    The first run of a key is an ordinary one, in which kernels are compiled; the second one is recorded. Recording runs
    nothing, so work that changes what it reads is done exactly once per call. The work of a key must launch the same
    kernels on the same addresses every time.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.records = self._device.type == "cuda"
        self._graphs: dict[Hashable, Graph | None] = {}

    def prepare(self, key: Hashable, work: Work, *, compiling: Work) -> None:
        """Record the work of a key, so that `run` finds it, after `compiling` has run every kernel that is new."""
        if self.records and key not in self._graphs:
            with on_device(self._device):
                compiling()
                self._keep(key, self._record(work))

    def run(self, key: Hashable, work: Work) -> bool:
        """Do the work of this key; True if nothing had to be compiled or recorded, so that it takes as long again."""
        if not self.records:
            work()
            return True
        with on_device(self._device):
            if key not in self._graphs:
                work()
                self._keep(key, None)  # Only after the run: an interrupted one may not have compiled all.
                return False
            known = self._graphs.pop(key)
            graph = known or self._record(work)
            self._keep(key, graph)
            graph.replay()
            return known is not None

    def _record(self, work: Work) -> Graph:
        """Recorded on a stream of this device's own: that of torch belongs to the device that was recorded on first.

        What other threads ask of the GPU meanwhile, memory above all, does not break the recording. `torch.cuda.graph`
        would wait for the GPU and give all spare memory back, before every one of many.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def _keep(self, key: Hashable, graph: Graph | None) -> None:
        self._graphs[key] = graph
        while len(self._graphs) > MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
