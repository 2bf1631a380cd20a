"""The tensors of a linear layer packed in 4 bits: their required shapes and dtypes, and how they are unpacked.

A 32-bit word holds eight codes, the first in its lowest four bits. For a weight [O, I] with G groups of inputs:

    AWQ          qweight [I, O/8] and qzeros [G, O/8], eight outputs to a word in the order 0 2 4 6 1 3 5 7;
                 scales [G, O]
    GPTQ         qweight [I/8, O], eight inputs to a word; qzeros [G, O/8], eight outputs to a word, in the layout's
                 first version less 1; scales [G, O]; g_idx [I], each input's group
    compressed-  weight_packed [O, I/8 rounded up], eight inputs to a word; weight_scale [O, G]; weight_shape, which
    tensors      is (O, I); unless zeros are all 8, weight_zero_point [O/8 rounded up, G], eight outputs to a word

In all layouts a weight is (code - zero) * scale. Sources: AutoAWQ and llm-awq, version "gemm"; AutoGPTQ and GPTQModel,
checkpoint formats "gptq" and "gptq_v2"; compressed-tensors, format "pack-quantized".

Legend: O output features, I input features, G groups of consecutive input features, W words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.names import TensorPlace
from forerun.checkpoints.huggingface.packing import Method, Packing
from forerun.core.errors import CheckpointError
from forerun.model.quantise import MAX_INT4, group_size_of
from forerun.model.weights import Int4Weight, Piece, Shape

IN_WORD: Final = 8  # codes
AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)  # position of each of eight outputs in its word
MIDDLE: Final = 8  # the zero of a symmetric weight
SCALES: Final = ("F16", "BF16", "F32")
DTYPES: Final = {"scales": SCALES, "weight_scale": SCALES, "weight_shape": ("I32", "I64")}  # all others are I32

Axis: TypeAlias = Literal["in", "in word", "group", "out", "out word"]
AXES: Final[Mapping[Method, Mapping[str, tuple[Axis, Axis]]]] = {  # of tensors that can be read in part
    "awq": {"qweight": ("in", "out word"), "qzeros": ("group", "out word"), "scales": ("group", "out")},
    "gptq": {"qweight": ("in word", "out"), "qzeros": ("group", "out word"), "scales": ("group", "out")},
    "compressed-tensors": {
        "weight_packed": ("out", "in word"),
        "weight_scale": ("out", "group"),
        "weight_zero_point": ("out word", "group"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWindow:
    """Outputs and inputs of a packed layer, aligned to whole words and groups, or to the end of the layer."""

    rows: range
    columns: range

    @classmethod
    def cover(cls, shape: Shape, group_size: int, rows: Piece, columns: Piece) -> "PackedWindow":
        """The smallest window that contains these rows and columns, with at least one word."""
        return cls(
            rows=whole_units(rows, IN_WORD, shape[0]), columns=whole_units(columns, lcm(IN_WORD, group_size), shape[1])
        )

    @property
    def shape(self) -> Shape:
        return len(self.rows), len(self.columns)

    def along(self, axis: Axis, group_size: int) -> range:
        """The window's range along an axis of a tensor."""
        numbers = self.rows if axis.startswith("out") else self.columns
        unit = group_size if axis == "group" else IN_WORD if axis.endswith("word") else 1
        return range(numbers.start // unit, -(-numbers.stop // unit))


def whole_units(piece: Piece, unit: int, size: int) -> range:
    """The whole units that contain a piece of `size` elements; one unit if the piece is only padding."""
    start = min(piece.start, size - 1) // unit * unit
    return range(start, min(size, max(start + unit, -(-piece.stop // unit) * unit)))


def packed_places(packing: Packing, place: TensorPlace) -> dict[str, TensorPlace]:
    """The tensors that replace a layer's weight, by suffix.

    Raises:
        CheckpointError: its sizes cannot be packed this way; the message does not name the layer.
    """
    num_out, num_in = place.shape
    group_size = packing.group_size or num_in
    if packing.method != "compressed-tensors":
        _require_multiple(num_out, "outputs", IN_WORD)
    _require_multiple(num_in, "inputs", IN_WORD if packing.method == "gptq" else group_size)
    whole = PackedWindow(rows=range(num_out), columns=range(num_in))
    shapes: dict[str, tuple[int, ...]] = {
        suffix: tuple(len(whole.along(axis, group_size)) for axis in axes)
        for suffix, axes in AXES[packing.method].items()
    }
    if packing.method == "compressed-tensors":
        shapes["weight_shape"] = (2,)
        if packing.is_symmetric:
            del shapes["weight_zero_point"]
    return {
        suffix: TensorPlace(name=place.name, shape=shape, dtypes=DTYPES.get(suffix, ("I32",)))
        for suffix, shape in shapes.items()
    }


def check_whole(packing: Packing, tensors: Mapping[str, Tensor], shape: Shape) -> None:
    """Check that the redundant tensors of a layer have the expected values.

    Raises:
        CheckpointError: a value differs; the message begins with the tensor's suffix.
    """
    if "bias" in tensors and tensors["bias"].any():
        raise CheckpointError("bias is not all zeros, but the model of config.json has no bias there")
    if "g_idx" in tensors:
        _check_order(tensors["g_idx"], packing.group_size or shape[1])
    if "weight_shape" in tensors:
        _check_shape(tensors["weight_shape"], shape)


def unpack(packing: Packing, tensors: Mapping[str, Tensor], shape: Shape, dtype: torch.dtype) -> Int4Weight:
    """Unpack the weight [O, I] from a layer's tensors by suffix, or from the same window of all of them.

    A group larger than the kernels' becomes several with the same scale and zero. Nothing is rounded.

    Args:
        dtype: the compute dtype of the weight.

    Raises:
        CheckpointError: a tensor holds an invalid value; the message begins with its suffix.
    """
    num_out, num_in = shape
    match packing.method:
        case "awq":
            values_OI = _reorder(nibbles(tensors["qweight"])).t()
            zeros_OG = _reorder(nibbles(tensors["qzeros"])).t()
            scales_OG = tensors["scales"].t()
        case "gptq":
            values_OI = nibbles(tensors["qweight"].t())
            scales_OG = tensors["scales"].t()
            zeros_OG = _gptq_zeros(packing, nibbles(tensors["qzeros"])).t()
        case "compressed-tensors":
            values_OI = nibbles(tensors["weight_packed"])[:, :num_in]
            scales_OG = tensors["weight_scale"]
            zeros_OG = torch.full(scales_OG.shape, MIDDLE, dtype=torch.uint8)
            if not packing.is_symmetric:
                zeros_OG = nibbles(tensors["weight_zero_point"].t())[:, :num_out].t()
    scales_OG = scales_OG.float()
    if not scales_OG.isfinite().all():
        name = "weight_scale" if packing.method == "compressed-tensors" else "scales"
        raise CheckpointError(f"{name} holds NaN or infinity, but scales must be finite")
    group_size = group_size_of(packing.group_size or num_in)
    repeats = -(-(packing.group_size or num_in) // group_size)
    num_groups = -(-num_in // group_size)
    return Int4Weight(
        values_OI=values_OI.contiguous(),
        scales_OG=scales_OG.repeat_interleave(repeats, 1)[:, :num_groups].contiguous(),
        zeros_OG=zeros_OG.repeat_interleave(repeats, 1)[:, :num_groups].contiguous(),
        group_size=group_size,
        dtype=dtype,
    )


def nibbles(words: Tensor) -> Tensor:
    """Unpack int32 words [rows, W], the first code in the lowest bits, into codes, uint8 [rows, 8 W]."""
    # Little-endian bytes of two codes each. clone() is used because contiguous() would keep a column's strides.
    pairs = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return torch.stack((pairs & MAX_INT4, pairs >> 4), -1).view(len(words), -1)


def _reorder(codes: Tensor) -> Tensor:
    """AWQ's codes [rows, O] in the order of outputs."""
    return codes.view(len(codes), -1, IN_WORD)[:, :, AWQ_PLACES].flatten(1)


def _gptq_zeros(packing: Packing, stored_GO: Tensor) -> Tensor:
    """The zeros from the stored zeros. A 15 in the first version means -1 in four bits, so its zero is 0.

    A symmetric zero is 8. It is stored as 7, or as 8 by programs that label the second version as the first.
    """
    if not packing.is_symmetric:
        return (stored_GO + packing.zero_offset) & MAX_INT4
    least = int(stored_GO.min())
    most = int(stored_GO.max())
    if least != most or least not in (MIDDLE - 1, MIDDLE):
        raise CheckpointError(
            f"qzeros holds numbers from {least} to {most}, but with sym true in config.json all must be 7, or all 8"
        )
    return torch.full_like(stored_GO, MIDDLE)


def _check_order(g_idx_I: Tensor, group_size: int) -> None:
    if not torch.equal(g_idx_I.long(), torch.arange(len(g_idx_I)) // group_size):
        raise CheckpointError(
            f"g_idx does not number groups of {group_size} consecutive inputs, so the layer has activation order: GPTQ "
            "with activation order is not supported"
        )


def _check_shape(stored: Tensor, shape: Shape) -> None:
    if tuple(stored.tolist()) != shape:
        raise CheckpointError(f"weight_shape holds {stored.tolist()}, but the model needs {list(shape)}")


def _require_multiple(size: int, what: str, unit: int) -> None:
    if size % unit:
        raise CheckpointError(f"it has {size} {what}, but this packing needs a multiple of {unit}")
