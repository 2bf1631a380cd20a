"""CUDA graphs: work on static buffers recorded once, then launched as one."""

from collections.abc import Callable, Hashable

import torch

from forerun.backends.gpu.language import on_device

MAX_GRAPHS = 64  # Graphs kept at a time; the least recently used goes first.


class GraphPool:
    """Runs work by key. Its first run is an ordinary one, in which kernels are compiled; the second one is recorded.

    Recording runs nothing, so work that changes what it reads is done exactly once per call. The work of a key must
    launch the same kernels on the same addresses every time. Without a GPU every run is an ordinary one.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    def run(self, key: Hashable, work: Callable[[], None]) -> bool:
        """Do the work of this key; True if nothing had to be compiled or recorded, so that it takes as long again."""
        if self._device.type != "cuda":
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

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Recorded on a stream of this device's own: that of torch belongs to the device that was recorded on first.

        What other threads ask of the GPU meanwhile, memory above all, does not break the recording.
        """
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph

    def _keep(self, key: Hashable, graph: torch.cuda.CUDAGraph | None) -> None:
        self._graphs[key] = graph
        while len(self._graphs) > MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
