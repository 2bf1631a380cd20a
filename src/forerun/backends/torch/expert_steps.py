"""The eager executor's mixture of experts: each expert computes the rows that chose it.

Legend: T rows, E experts, K experts of a row, H hidden size, R rows of one expert.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from forerun.backends.torch.ops import Linear, TorchOps
from forerun.core.model_spec import ModelSpec


def bind_experts(
    spec: ModelSpec, ops: TorchOps, experts: Sequence[tuple[Linear, Linear]]
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function of h [T, H], the router's scores [T, E] and the residual stream [T, H] that gives the new stream.

    A row's products are added in the order of its experts' scores, whatever the other rows chose.
    """
    gate = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "clamped": ops.clamped_mul}[spec.gate]
    num_chosen = spec.num_chosen_experts

    def add_experts(h_TH: Tensor, scores_TE: Tensor, x_TH: Tensor) -> Tensor:
        chosen_TK, shares_TK = choose(scores_TE, num_chosen)
        products_TKH = h_TH.new_empty(len(h_TH), num_chosen, h_TH.shape[1])
        for expert in sorted(set(chosen_TK.flatten().tolist())):
            gate_up, out = experts[expert]
            rows_R, places_R = (chosen_TK == expert).nonzero(as_tuple=True)
            products_TKH[rows_R, places_R] = out(gate(gate_up(h_TH[rows_R])))
        branch_TH = shares_TK[:, :1] * products_TKH[:, 0]
        for place in range(1, num_chosen):
            branch_TH = branch_TH + shares_TK[:, place, None] * products_TKH[:, place]
        return x_TH + branch_TH

    return add_experts


def choose(scores_TE: Tensor, num_chosen: int) -> tuple[Tensor, Tensor]:
    """The experts of each row [T, K], best first, and their shares: the softmax of their scores. Row by row, as torch
    may compute the last rows of many with other code."""
    best = [row.topk(num_chosen) for row in scores_TE]
    shares_TK = torch.stack([row.values.softmax(0) for row in best])
    return torch.stack([row.indices for row in best]), shares_TK
