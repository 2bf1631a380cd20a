"""The pairs of a mixture of experts: which rows chose which experts, put in the order of experts.

A pair is a row and one of its experts; those of one expert lie together. Spare rows choose no expert.

Legend: T rows, E experts, K experts of a row, H hidden size, I intermediate size; in kernels C pairs of a chunk.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.core.model_spec import ModelSpec

CHUNK = tl.constexpr(256)  # Pairs that a program looks at together.


class ExpertPairs(NamedTuple):
    """The pairs of a pass and what is computed for them; all layers share one.

    Args:
        chosen: int32 [T * K], the experts of each row, best first; E: none.
        shares: float32 [T * K], the softmax of their scores.
        bounds: int32 [2 E], the first place of an expert's pairs and the one after the last.
        order: int32 [T * K], the pair at each place.
        places: int32 [T * K], the place of each pair.
        inputs: [T * K, H] in the compute dtype, the normalised rows in the order of places.
        gated: [T * K, I] in the compute dtype.
        products: float32 [T * K, H].
    """

    chosen: Tensor
    shares: Tensor
    bounds: Tensor
    order: Tensor
    places: Tensor
    inputs: Tensor
    gated: Tensor
    products: Tensor

    @classmethod
    def for_model(cls, spec: ModelSpec, *, max_rows: int, dtype: torch.dtype, device: str) -> "ExpertPairs":
        """Room for the pairs of passes of at most `max_rows` rows."""
        count = max_rows * spec.num_chosen_experts
        chosen, order, places = (torch.zeros(count, dtype=torch.int32, device=device) for _ in range(3))
        return cls(
            chosen=chosen,
            shares=torch.zeros(count, device=device),
            bounds=torch.zeros(2 * spec.num_experts, dtype=torch.int32, device=device),
            order=order,
            places=places,
            inputs=torch.zeros(count, spec.hidden_size, dtype=dtype, device=device),
            gated=torch.zeros(count, spec.intermediate_size, dtype=dtype, device=device),
            products=torch.zeros(count, spec.hidden_size, device=device),
        )


def choose_experts(
    scores: Tensor, lengths_T: Tensor, pairs: ExpertPairs, *, num_rows: int, num_chosen: int, overlaps: bool
) -> None:
    """Choose the experts of each row by the router's scores, float32 [any, E], and put the pairs in order.

    Args:
        lengths_T: of a `RowTable`; rows that see nothing are spare.
    """
    num_experts = scores.shape[1]
    choose_kernel[(num_rows,)](
        scores, lengths_T, pairs.chosen, pairs.shares,
        NUM_EXPERTS=num_experts, NUM_CHOSEN=num_chosen, BLOCK=triton.next_power_of_2(num_experts), OVERLAPS=overlaps,
        **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip
    order_kernel[(num_experts,)](
        pairs.chosen, pairs.bounds, pairs.order, pairs.places, num_rows * num_chosen,
        OVERLAPS=overlaps, **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def choose_kernel(
    scores, lengths, chosen, shares,
    NUM_EXPERTS: tl.constexpr, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """chosen[t] = the experts of the K highest scores[t], the highest first and of equal ones the first; shares[t] =
    the softmax of their scores.

    scores [T, E] float32, lengths [T], chosen and shares [T, K]. A program does one row.
    """
    PLACES: tl.constexpr = triton.next_power_of_2(NUM_CHOSEN)
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    experts_E = tl.arange(0, BLOCK)
    places_K = tl.arange(0, PLACES)
    scores_E = tl.load(scores + row * NUM_EXPERTS + experts_E, mask=experts_E < NUM_EXPERTS, other=float("-inf"))
    highest = tl.max(scores_E, axis=0)
    total = 0.0
    chosen_K = tl.full((PLACES,), NUM_EXPERTS, tl.int32)
    shares_K = tl.zeros((PLACES,), tl.float32)
    for place in tl.static_range(NUM_CHOSEN):
        best = tl.max(scores_E, axis=0)
        expert = tl.min(tl.where(scores_E == best, experts_E, NUM_EXPERTS), axis=0)
        share = tl.exp(best - highest)
        total += share
        chosen_K = tl.where(places_K == place, expert, chosen_K)
        shares_K = tl.where(places_K == place, share, shares_K)
        scores_E = tl.where(experts_E == expert, float("-inf"), scores_E)
    is_spare = tl.load(lengths + row) == 0
    places_K += row * NUM_CHOSEN
    is_place_K = tl.arange(0, PLACES) < NUM_CHOSEN
    tl.store(chosen + places_K, tl.where(is_spare, NUM_EXPERTS, chosen_K), mask=is_place_K)
    tl.store(shares + places_K, shares_K / total, mask=is_place_K)


@triton.jit(do_not_specialize=["num_pairs"])
def order_kernel(chosen, bounds, order, places, num_pairs, OVERLAPS: tl.constexpr):
    """bounds[e] = where the pairs of expert e begin and end if pairs are ordered by expert, then by number; order[p] =
    the pair at place p, and places the inverse. A program does one expert.
    """
    await_inputs(OVERLAPS)
    expert = tl.program_id(0)
    place = 0
    for first in range(0, num_pairs, CHUNK):
        pairs_C = first + tl.arange(0, CHUNK)
        found_C = tl.load(chosen + pairs_C, mask=pairs_C < num_pairs, other=expert)
        place += tl.sum((found_C < expert).to(tl.int32), axis=0)
    tl.store(bounds + 2 * expert, place)
    for first in range(0, num_pairs, CHUNK):
        pairs_C = first + tl.arange(0, CHUNK)
        found_C = tl.load(chosen + pairs_C, mask=pairs_C < num_pairs, other=-1)
        is_own_C = (found_C == expert).to(tl.int32)
        places_C = place + tl.cumsum(is_own_C, axis=0) - 1
        tl.store(order + places_C, pairs_C, mask=is_own_C > 0)
        tl.store(places + pairs_C, places_C, mask=is_own_C > 0)
        place += tl.sum(is_own_C, axis=0)
    tl.store(bounds + 2 * expert + 1, place)
