"""llama.cpp's chain of samplers for a request, in our order of filters."""

from types import TracebackType

import llama_cpp

from forerun.bench.peers.llama_context import Context
from forerun.bench.peers.messages import Request


class Sampler:
    """A `with` block's samplers. The same chain serves every row, as in llama.cpp's own examples."""

    def __init__(self, request: Request) -> None:
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if request.temperature == 0.0:
            self._add(llama_cpp.llama_sampler_init_greedy())
            return
        self._add(llama_cpp.llama_sampler_init_temp(request.temperature))
        if request.top_k:
            self._add(llama_cpp.llama_sampler_init_top_k(request.top_k))
        if request.top_p < 1.0:
            self._add(llama_cpp.llama_sampler_init_top_p(request.top_p, 1))
        if request.min_p:
            self._add(llama_cpp.llama_sampler_init_min_p(request.min_p, 1))
        self._add(llama_cpp.llama_sampler_init_dist(request.seed))

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_sampler_free(self._chain)

    def choose(self, context: Context, row: int) -> int:
        """The token after a row of the last pass."""
        return int(llama_cpp.llama_sampler_sample(self._chain, context.context, row))

    def _add(self, sampler: object) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, sampler)
