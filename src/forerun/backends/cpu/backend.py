"""The CPU backend: the C++ kernels run a whole pass in one call, in float32 and bfloat16.

Legend: T rows, V vocabulary, K top-k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from forerun.backends.backend import Backend, DraftLayers, KeptWeights, KernelProbe
from forerun.backends.cpu.binding import library
from forerun.backends.cpu.cores import keep_pool_on
from forerun.backends.cpu.draft_linear import DraftLinear
from forerun.backends.cpu.executor import NativeExecutor, NativeLayers, address
from forerun.backends.cpu.host_group import HostGroup, shared_memory
from forerun.backends.cpu.layouts import TopTwo
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.lowering import Lowering
from forerun.backends.cpu.probe import NativeProbe
from forerun.core.model_spec import ModelSpec
from forerun.core.threads import kernel_threads
from forerun.model.backend import Linear
from forerun.model.executor import Executor, ModelExecutor
from forerun.model.program import Program
from forerun.model.quantise import quantise
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import DenseWeight, Weight, WeightSource
from forerun.sampling.noise import KeyedRows
from forerun.sampling.sample import BestTokens, TopK, topk

MAX_TOPK: Final = 16  # limit of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBackend(Backend):
    """Runs passes, samples and moves cache rows in the C++ library.

    Args:
        input_bits: inputs of linear layers with block-quantized weights are rounded to this many bits.
        kept: file for the packed weights; None packs them in memory at every start.
    """

    name: str = "native"
    input_bits: int = 16
    kept: KeptWeights | None = None
    row_exact: bool = True
    thread_exact: bool = True

    def bind(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, group: RankGroup | None
    ) -> ModelExecutor:
        assert group is None or isinstance(group, HostGroup), "these kernels add partials in shared memory only"
        kept = None if group is not None else self.kept
        lowering = Lowering(spec, program, weights, cache, group, input_bits=self.input_bits, kept=kept)
        return NativeExecutor(lowering, group)

    def keeping(self, kept: KeptWeights) -> Self:
        return replace(self, kept=kept)

    def kernel_probe(self, executor: Executor) -> KernelProbe | None:
        assert isinstance(executor, NativeExecutor), "an executor of this backend"
        return NativeProbe(executor)

    def select_tier(self, name: str | None) -> bool:
        return bool(library().forerun_select_tier(None if name is None else name.encode()))

    def group_memory(self, num_ranks: int) -> int | None:
        return shared_memory(num_ranks)

    def host_group(self, descriptor: int, rank: int, num_ranks: int, blame: Callable[[], str | None]) -> RankGroup:
        return HostGroup(descriptor, rank, num_ranks, blame=blame)

    def best_tokens(self, scores_TV: Tensor, noise: KeyedRows | None, *, temperature: float = 1.0) -> BestTokens:
        num_rows, vocab_size = scores_TV.shape
        top_twos = (TopTwo * num_rows)()
        keys = keys_of(noise, num_rows)
        library().forerun_sample_rows(
            scores_TV.data_ptr(),
            scores_TV.stride(0),
            num_rows,
            vocab_size,
            temperature,
            address(keys),
            top_twos,
            kernel_threads(),
        )
        return BestTokens(
            token_ids=[row.token for row in top_twos],
            totals=[row.best for row in top_twos],
            next_totals=[row.second for row in top_twos],
        )

    def topk(
        self,
        scores_TV: Tensor,
        noise: KeyedRows | None,
        k: int,
        *,
        temperature: float = 1.0,
        column_ids: Tensor | None = None,
    ) -> TopK:
        if k > MAX_TOPK:
            return topk(scores_TV, noise, k, temperature=temperature, column_ids=column_ids)
        num_rows, vocab_size = scores_TV.shape
        count = min(k, vocab_size)
        keys = keys_of(noise, num_rows)
        tokens = np.empty((num_rows, count), np.int32)
        totals = np.empty((num_rows, count), np.float32)
        log_sums = np.empty((num_rows, 1), np.float32)
        library().forerun_topk_rows(
            scores_TV.data_ptr(),
            scores_TV.stride(0),
            num_rows,
            vocab_size,
            temperature,
            address(keys),
            None if column_ids is None else column_ids.data_ptr(),
            count,
            address(tokens),
            address(totals),
            address(log_sums),
            kernel_threads(),
        )
        return tokens.tolist(), (totals - log_sums).tolist()

    def draft_linear(self, weight: Weight, bias_O: Tensor | None = None) -> Linear:
        """Plain weights are rounded to 8 bits, as a draft model's are; codes of a file stay as they are."""
        kept = quantise(weight.values_OI, "int8") if isinstance(weight, DenseWeight) else weight
        return DraftLinear(PackedLinear.pack(kept, bias_O))

    def draft_layers(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, is_known_S: Tensor
    ) -> DraftLayers:
        return NativeLayers(Lowering(spec, program, weights, cache, known_S=is_known_S))

    def move_slots(self, storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
        slots = np.array(sources, np.int64)
        num_parts = storage_2LSKD.shape[0] * storage_2LSKD.shape[1]
        element_bytes = storage_2LSKD.element_size()
        library().forerun_move_slots(
            storage_2LSKD.data_ptr(),
            num_parts,
            storage_2LSKD.stride(1) * element_bytes,
            storage_2LSKD.stride(2) * element_bytes,
            address(slots),
            len(slots),
            start,
        )

    def place_threads(self, cores: Sequence[int]) -> None:
        keep_pool_on(cores)


def keys_of(noise: KeyedRows | None, num_rows: int) -> NDArray[np.int32]:
    """[T, 3]: low and high half of a row's key, and 1; all 0 without noise."""
    return np.zeros((num_rows, 3), np.int32) if noise is None else noise.keys


NATIVE = CpuBackend()
EIGHT_BIT_INPUTS = CpuBackend(name="native, 8-bit inputs", input_bits=8)
