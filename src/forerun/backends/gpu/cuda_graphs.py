"""CUDA graphs: work on static buffers recorded once, then launched as one."""

from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from forerun.backends.gpu.kernel_parts import on_device

MAX_GRAPHS = 512  # Graphs kept at a time; the least recently used is dropped first.

Work = Callable[[], None]


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Run it."""
        ...


class GraphPool:
    """Runs work by key, and records it as a graph if there is a GPU.

    The first run of a key is not recorded, since it compiles kernels; the second one is. Recording does not run the
    work, so each call runs it exactly once, even if it changes its inputs. The work of a key must launch the same
    kernels on the same addresses every time.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.records = self._device.type == "cuda"
        self._graphs: dict[Hashable, Graph | None] = {}
        self._stream: torch.cuda.Stream | None = None  # on which all work is recorded

    def prepare(self, key: Hashable, work: Work, *, compiling: Work) -> None:
        """Record the work of a key for `run`, after running `compiling`, which must use every kernel that is new."""
        if self.records and key not in self._graphs:
            with on_device(self._device):
                compiling()
                self._keep(key, self._record(work))

    def run(self, key: Hashable, work: Work) -> bool:
        """Run the work of this key; True if nothing was compiled or recorded, so that the time is representative."""
        if not self.records:
            work()
            return True
        with on_device(self._device):
            if key not in self._graphs:
                work()
                self._keep(key, None)  # After the run, since an interrupted run may not have compiled everything.
                return False
            known = self._graphs.pop(key)
            graph = known or self._record(work)
            self._keep(key, graph)
            graph.replay()
            return known is not None

    def _record(self, work: Work) -> Graph:
        """Record on a stream of this device, since torch's stream belongs to the first device that was recorded on.

        What torch's kernels allocate is free again at the end of the work, so all graphs share one memory pool. GPU
        calls of other threads, such as allocations, do not break the recording. `torch.cuda.graph` is not used, because
        before each recording it would wait for the GPU and free all cached memory.
        """
        graph = torch.cuda.CUDAGraph()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._memory = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def _keep(self, key: Hashable, graph: Graph | None) -> None:
        self._graphs[key] = graph
        while len(self._graphs) > MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
