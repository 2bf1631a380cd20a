"""Gemma 4's embeddings for each layer: their sum with the projection of the first embedding, and a layer's gate.

Legend: T rows, V vocabulary, L layers, P numbers of a token's embedding for a layer.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.passes.gates import gated_pairs

HALF_POWER = tl.constexpr(2.0**-0.5)


def layer_inputs(
    projections: Tensor, table: Tensor, token_ids_T: Tensor, weight_P: Tensor, outputs: Tensor, *,
    projection_scale: float, token_scale: float, eps: float, num_rows: int, overlaps: bool,
) -> None:  # fmt: skip
    """Write each layer's input of each row, from the row's token and the projection of its first embedding.

    Args:
        projections, outputs: float32 [any, L * P].
        table: [V, L * P].
        weight_P: float32, the weight of the projections' norm.
    """
    size = len(weight_P)
    width = table.shape[1]
    layer_inputs_kernel[(num_rows, width // size)](
        projections, table, token_ids_T, weight_P, outputs,
        PROJECTION_SCALE=projection_scale, TOKEN_SCALE=token_scale, EPS=eps, WIDTH=width, SIZE=size,
        BLOCK=triton.next_power_of_2(size), OVERLAPS=overlaps, **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip


def gate_input(
    products: Tensor, inputs: Tensor, gated: Tensor, *, layer: int, num_rows: int, overlaps: bool
) -> None:  # fmt: skip
    """gated[t] = gelu(products[t]) * inputs[t, layer].

    Args:
        products: float32 [any, P].
        inputs: float32 [any, L * P] of `layer_inputs`.
        gated: [any, P] in the compute dtype.
    """
    size = gated.shape[1]
    gate_input_kernel[(num_rows,)](
        products, inputs, gated, layer,
        WIDTH=inputs.shape[1], SIZE=size, BLOCK=triton.next_power_of_2(size), OVERLAPS=overlaps,
        **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def layer_inputs_kernel(
    projections, table, token_ids, weight, outputs, PROJECTION_SCALE: tl.constexpr, TOKEN_SCALE: tl.constexpr,
    EPS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """outputs[t, l] = (norm(projections[t, l] * PROJECTION_SCALE) + table[token_ids[t], l] * TOKEN_SCALE) / sqrt 2.

    projections and outputs float32 [T, L, P], table [V, L, P], weight [P] of the norm. A program computes one row's
    input of one layer; SIZE is P, BLOCK the next power of two, WIDTH is L * P.
    """
    row = tl.program_id(0).to(tl.int64)
    places_P = tl.arange(0, BLOCK)
    is_there_P = places_P < SIZE
    places_P += tl.program_id(1) * SIZE
    weight_P = tl.load(weight + tl.arange(0, BLOCK), mask=is_there_P, other=0.0)
    await_inputs(OVERLAPS)
    token_id = tl.load(token_ids + row).to(tl.int64)
    found_P = tl.load(table + token_id * WIDTH + places_P, mask=is_there_P, other=0.0).to(tl.float32)
    projected_P = tl.load(projections + row * WIDTH + places_P, mask=is_there_P, other=0.0) * PROJECTION_SCALE
    projected_P *= 1.0 / tl.sqrt(tl.sum(projected_P * projected_P) / SIZE + EPS) * weight_P
    tl.store(outputs + row * WIDTH + places_P, (projected_P + found_P * TOKEN_SCALE) * HALF_POWER, mask=is_there_P)


@triton.jit(do_not_specialize=["layer"])
def gate_input_kernel(
    products, inputs, gated, layer, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    """gated[t] = gelu(products[t]) * inputs[t, layer], with the tanh approximation of `gated_pairs`.

    products float32 [T, P], inputs float32 [T, L, P], gated [T, P]. A program computes one row.
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    places_P = tl.arange(0, BLOCK)
    is_there_P = places_P < SIZE
    gates_P = tl.load(products + row * SIZE + places_P, mask=is_there_P, other=0.0)
    inputs_P = tl.load(inputs + row * WIDTH + layer * SIZE + places_P, mask=is_there_P, other=0.0)
    gated_P = gated_pairs(gates_P, inputs_P, "gelu_tanh").to(gated.dtype.element_ty)
    tl.store(gated + row * SIZE + places_P, gated_P, mask=is_there_P)
