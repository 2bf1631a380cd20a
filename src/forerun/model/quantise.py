"""Quantises weights of linear layers to 8 or 4 bits, and dequantises them.

This file fixes only how weights are stored. A kernel may also round the inputs of such a weight, as long as it does the
same to every row.

Legend: O output features, I input features, G groups of consecutive input features, N features of a group, R rows.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.errors import CheckpointError
from forerun.core.model_spec import WeightFormat
from forerun.model.gguf_block_types import BLOCKS
from forerun.model.gguf_blocks import dequantise_blocks, floats, halves
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, StackedWeight, Weight

MAX_INT8: Final = 127
MAX_INT4: Final = 15
GROUP_SIZES: Final = (128, 64, 32)
CLIPPING: Final = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)  # the shares of a group's range to try
ELEMENTS_PER_BLOCK: Final = 1 << 21  # quantised at a time: few enough for the CPU's cache, enough for all threads


def output_format(weight_format: WeightFormat) -> WeightFormat:
    """The output projection's format in a model with this layer format.

    With int4 layers it is int8, because its rounding errors directly change the scores. On held-out text the built-in
    target's perplexity is 16.51 plain, 16.72 with int4 layers, and 16.90 with an int4 output projection too; an int8
    one makes no measurable difference.
    """
    return "int8" if weight_format == "int4" else weight_format


def weight_bytes(shape: tuple[int, ...], weight_format: WeightFormat, element_bytes: int = 4) -> int:
    """Bytes of a weight of shape (O, I) in a format; `element_bytes` is the size of an element of a plain weight."""
    num_out, num_in = shape
    match weight_format:
        case "plain":
            return num_out * num_in * element_bytes
        case "int8":
            return num_out * (num_in + 4)
        case "int4":
            num_groups = -(-num_in // group_size_of(num_in))
            return num_out * (-(-num_in // 2) + num_groups * (4 + 1))


def group_size_of(num_in: int) -> int:
    """Features of a group: the largest size that divides `num_in`; else the smallest, and the last group is shorter."""
    return next((size for size in GROUP_SIZES if num_in % size == 0), GROUP_SIZES[-1])


def quantise(weight_OI: Tensor, weight_format: WeightFormat) -> Weight:
    """Convert a weight [O, I] of any floating dtype to a format; "plain" keeps it as it is.

    The result does not depend on the number of threads.

    Raises:
        CheckpointError: the weight holds NaN or infinity.
    """
    match weight_format:
        case "plain":
            return DenseWeight(values_OI=weight_OI)
        case "int8":
            return to_int8(weight_OI)
        case "int4":
            return to_int4(weight_OI)


def dequantise(weight: Weight) -> Tensor:
    """The values of a weight, float32 [O, I]."""
    match weight:
        case Int8Weight():
            return weight.values_OI * weight.scales_O[:, None]
        case Int4Weight():
            num_in = weight.values_OI.shape[1]
            values_OGN = in_groups(weight.values_OI.float(), weight.group_size)
            plain_OGN = (values_OGN - weight.zeros_OG[:, :, None]) * weight.scales_OG[:, :, None]
            return plain_OGN.flatten(1)[:, :num_in]
        case BlockWeight():
            return dequantise_blocks(weight.blocks_OB, weight.block_type)
        case StackedWeight():
            return torch.cat([dequantise(part) for part in weight.parts])
        case DenseWeight():
            return weight.values_OI.float()


def as_plain(weight: Weight) -> Tensor:
    """The weight [O, I] in the dtype it is computed in, for kernels that multiply plain weights."""
    match weight:
        case DenseWeight():
            return weight.values_OI
        case BlockWeight():
            plain_OI = torch.empty(weight.shape, dtype=weight.dtype, device=weight.blocks_OB.device)
            for rows in blocks(plain_OI):
                plain_OI[rows] = dequantise_blocks(weight.blocks_OB[rows], weight.block_type)
            return plain_OI
        case StackedWeight():
            return torch.cat([as_plain(part) for part in weight.parts])
        case _:
            return dequantise(weight).to(weight.dtype)


def as_int4(weight: BlockWeight) -> Int4Weight:
    """A Q4_0 weight as int4 with the same values, for kernels that multiply by int4; its zero is always code 8."""
    assert weight.block_type == "Q4_0", weight.block_type
    blocks_NB = weight.blocks_OB.reshape(-1, BLOCKS["Q4_0"].num_bytes)
    scales_OG = floats(blocks_NB, 0).view(weight.shape[0], -1)
    return Int4Weight(
        values_OI=halves(blocks_NB[:, 2:]).view(weight.shape),
        scales_OG=scales_OG,
        zeros_OG=torch.full_like(scales_OG, 8, dtype=torch.uint8),
        group_size=BLOCKS["Q4_0"].num_elements,
        dtype=weight.dtype,
    )


def to_int8(weight_OI: Tensor) -> Int8Weight:
    """Scale each output so that its largest weight becomes 127. Clipping weights gained nothing on held-out text."""
    values_OI = torch.empty_like(weight_OI, dtype=torch.int8)
    scales_O = torch.empty(weight_OI.shape[0], device=weight_OI.device)
    for rows in blocks(weight_OI):
        plain_RI = weight_OI[rows].float()
        scales_R = plain_RI.abs().amax(1) / MAX_INT8
        values_OI[rows] = (plain_RI / nonzero(scales_R)[:, None]).round_().clamp_(-MAX_INT8, MAX_INT8).to(torch.int8)
        scales_O[rows] = scales_R
    require_finite(scales_O, weight_OI)
    return Int8Weight(values_OI=values_OI, scales_O=scales_O, dtype=weight_OI.dtype)


def to_int4(weight_OI: Tensor) -> Int4Weight:
    """Quantise each group over its range of weights, or over the share of it that gives the least squared error.

    Clipping reduces the divergence of the built-in pair's predictions from those of plain weights by a tenth.
    """
    num_out, num_in = weight_OI.shape
    device = weight_OI.device
    group_size = group_size_of(num_in)
    num_groups = -(-num_in // group_size)
    values_OI = torch.empty_like(weight_OI, dtype=torch.uint8)
    scales_OG = torch.empty(num_out, num_groups, device=device)
    zeros_OG = torch.empty(num_out, num_groups, dtype=torch.uint8, device=device)
    for rows in blocks(weight_OI):
        plain_RGN = in_groups(weight_OI[rows].float(), group_size)
        scales_RG1, zeros_RG1 = fit_groups(plain_RGN)
        values_RGN = round_to_int4(plain_RGN, scales_RG1, zeros_RG1)
        values_OI[rows] = values_RGN.flatten(1)[:, :num_in].to(torch.uint8)
        scales_OG[rows] = scales_RG1.squeeze(-1)
        zeros_OG[rows] = zeros_RG1.squeeze(-1).to(torch.uint8)
    require_finite(scales_OG, weight_OI)
    return Int4Weight(
        values_OI=values_OI, scales_OG=scales_OG, zeros_OG=zeros_OG, group_size=group_size, dtype=weight_OI.dtype
    )


def fit_groups(plain_RGN: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero [R, G, 1] of each group, found by trying every share of its range in CLIPPING.

    The range always contains 0, so that weights of 0, and the padding of the last group, stay 0. All shares of a range
    have the same zero.
    """
    low_RG1 = plain_RGN.amin(-1, keepdim=True).clamp_(max=0.0)
    steps_RG1 = (plain_RGN.amax(-1, keepdim=True).clamp_(min=0.0) - low_RG1) / MAX_INT4
    zeros_RG1 = (-low_RG1 / nonzero(steps_RG1)).round_().clamp_(0, MAX_INT4)
    best_RG1 = steps_RG1
    least_RG1 = torch.full_like(steps_RG1, torch.inf)
    for share in CLIPPING:
        scales_RG1 = steps_RG1 * share
        values_RGN = round_to_int4(plain_RGN, scales_RG1, zeros_RG1)
        errors_RGN = values_RGN.sub_(zeros_RG1).mul_(scales_RG1).sub_(plain_RGN)
        error_RG1 = errors_RGN.square_().sum(-1, keepdim=True)
        is_better_RG1 = error_RG1 < least_RG1
        best_RG1 = torch.where(is_better_RG1, scales_RG1, best_RG1)
        least_RG1 = torch.where(is_better_RG1, error_RG1, least_RG1)
    return best_RG1, zeros_RG1


def round_to_int4(plain_RGN: Tensor, scales_RG1: Tensor, zeros_RG1: Tensor) -> Tensor:
    """The codes, 0 to 15, as floats."""
    return (plain_RGN / nonzero(scales_RG1)).round_().add_(zeros_RG1).clamp_(0, MAX_INT4)


def in_groups(rows_RI: Tensor, group_size: int) -> Tensor:
    """Reshape [R, I] to [R, G, N]; the last group is padded with zeros."""
    padded_RI = functional.pad(rows_RI, (0, -rows_RI.shape[1] % group_size))
    return padded_RI.view(len(rows_RI), -1, group_size)


def blocks(weight_OI: Tensor) -> Iterator[slice]:
    """Slices of rows, each to be quantised at a time."""
    num_out, num_in = weight_OI.shape
    num_rows = max(1, ELEMENTS_PER_BLOCK // num_in)
    for start in range(0, num_out, num_rows):
        yield slice(start, min(start + num_rows, num_out))


def nonzero(scales: Tensor) -> Tensor:
    """The scales as divisors: a scale of 0 becomes 1, which is as good as any, since its weights are all 0."""
    return torch.where(scales == 0.0, 1.0, scales)


def require_finite(scales: Tensor, weight_OI: Tensor) -> None:
    if not scales.isfinite().all():
        raise CheckpointError(
            f"a weight of shape {list(weight_OI.shape)} holds NaN or infinity, which int8 and int4 cannot "
            "represent: check the checkpoint, or take another dtype"
        )
