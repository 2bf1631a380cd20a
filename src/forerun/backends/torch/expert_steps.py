"""The eager executor's mixture of experts: each expert computes the rows that chose it.

Legend: T rows, E experts, K experts of a row, H hidden size, R rows of one expert.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from forerun.backends.torch.ops import Linear, TorchOps
from forerun.core.model_spec import ModelSpec, SigmoidRouting


def bind_experts(
    spec: ModelSpec, ops: TorchOps, experts: Sequence[tuple[Linear, Linear]], correction_E: Tensor | None = None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function of h [T, H], the router's scores [T, E] and the residual stream [T, H] that gives the new stream.

    A row's products are added in the order of its experts' scores, whatever the other rows chose.
    """
    gates = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "clamped": ops.clamped_mul, "relu2": relu2}
    gate = gates[spec.gate]
    routing = spec.routing
    num_chosen = spec.num_chosen_experts

    def add_experts(h_TH: Tensor, scores_TE: Tensor, x_TH: Tensor) -> Tensor:
        if routing is None:
            chosen_TK, shares_TK = choose(scores_TE, num_chosen)
        else:
            chosen_TK, shares_TK = choose_by_sigmoids(scores_TE, num_chosen, routing, correction_E)
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


def choose_by_sigmoids(
    scores_TE: Tensor, num_chosen: int, routing: SigmoidRouting, correction_E: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same by `routing`, in float32 or better."""
    wide = torch.promote_types(scores_TE.dtype, torch.float32)
    chosen = list[Tensor]()
    shares = list[Tensor]()
    for row_E in scores_TE:
        sigmoids_E = torch.sigmoid(row_E.to(wide))
        best_K = (sigmoids_E if correction_E is None else sigmoids_E + correction_E).topk(num_chosen).indices
        shares_K = sigmoids_E[best_K]
        if routing.is_normalised:
            shares_K = shares_K / (shares_K.sum() + routing.eps)
        chosen.append(best_K)
        shares.append((shares_K * routing.scale).to(scores_TE.dtype))
    return torch.stack(chosen), torch.stack(shares)


def relu2(up_TI: Tensor) -> Tensor:
    """The square of what is above 0."""
    return torch.relu(up_TI).square()
