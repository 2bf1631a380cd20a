"""llama.cpp's chain of samplers for a request, in our order of filters."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import llama_cpp

from forerun.bench.peers.llama_context import Context
from forerun.bench.peers.messages import PeerRequest

Sample = Callable[[Context, int], int]  # samples the token after a row of the last pass


@contextmanager
def sampler(request: PeerRequest) -> Iterator[Sample]:
    """A sampler chain, freed at the end of the `with` block. It serves every row, as in llama.cpp's own examples."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for part in _parts(request):
        llama_cpp.llama_sampler_chain_add(chain, part)
    try:
        yield lambda context, row: int(llama_cpp.llama_sampler_sample(chain, context.context, row))
    finally:
        llama_cpp.llama_sampler_free(chain)


def _parts(request: PeerRequest) -> Iterator[object]:
    if request.temperature == 0.0:
        yield llama_cpp.llama_sampler_init_greedy()
        return
    yield llama_cpp.llama_sampler_init_temp(request.temperature)
    if request.top_k:
        yield llama_cpp.llama_sampler_init_top_k(request.top_k)
    if request.top_p < 1.0:
        yield llama_cpp.llama_sampler_init_top_p(request.top_p, 1)
    if request.min_p:
        yield llama_cpp.llama_sampler_init_min_p(request.min_p, 1)
    yield llama_cpp.llama_sampler_init_dist(request.seed)
