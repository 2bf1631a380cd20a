"""A weight laid out for the native kernels, which multiply it inside a program.

Legend: I input features, O output features.
"""

import weakref
from collections.abc import Iterator
from ctypes import Structure, addressof, byref, c_void_p
from typing import Self

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import FORMATS, NativeLinear
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, StackedWeight, Weight


class Source(Structure):
    """A weight as it comes, see cpp/pack.h."""

    _fields_ = (("values", c_void_p), ("scales", c_void_p), ("zeros", c_void_p), ("bias", c_void_p))


class PackedLinear:
    """A packed weight, which frees its memory when it goes. Made by `pack`.

    Args:
        descriptor: what C code reads.
        num_bytes: that the weight, its scales and its bias take.
    """

    below: Self | None = None

    def __init__(self, descriptor: NativeLinear, num_bytes: int) -> None:
        self.descriptor, self.num_bytes = descriptor, num_bytes
        weakref.finalize(self, library().forerun_free, descriptor.weights)

    @classmethod
    def pack(cls, weight: Weight, bias_O: Tensor | None, *, paired: int = 0, rounds_inputs: bool = True) -> Self:
        """Copy a weight [O, I] into the kernels' own layout; blocks of codes stay codes, about as large as they were.

        Args:
            bias_O: of any floating dtype, or None.
            paired: of a weight of gate rows and as many up rows below them, how many each has; else 0.
            rounds_inputs: of an int8 weight, whether inputs are rounded to int8 as well; else they stay float32.

        Raises:
            MemoryError: there is no room for the copy.
        """
        if isinstance(weight, StackedWeight):
            assert not paired, "gate and up of one format"
            return cls._stack(weight, bias_O)
        name, group, parts = parts_of(weight)
        num_out, num_in = weight.shape
        assert paired in (0, num_out / 2), (paired, num_out)
        if not rounds_inputs:
            assert name == "int8", name
            name = "int8_wide"
        descriptor = NativeLinear(format=FORMATS[name], num_out=num_out, num_in=num_in, group=group, paired=paired)
        held = [part.contiguous() for part in parts]  # until they are copied
        bias = None if bias_O is None else bias_O.float().contiguous()
        source = Source(*(part.data_ptr() for part in held))
        source.bias = None if bias is None else bias.data_ptr()
        num_bytes = library().forerun_pack(byref(descriptor), byref(source))
        if not num_bytes:
            raise MemoryError(f"no memory for a weight of {num_out} x {num_in} as {name}")
        return cls(descriptor, num_bytes)

    @classmethod
    def _stack(cls, weight: StackedWeight, bias_O: Tensor | None) -> Self:
        """The first part, which leads to the others."""
        sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(sizes) if bias_O is None else torch.split(bias_O, sizes)
        first, *others = (cls.pack(part, bias) for part, bias in zip(weight.parts, biases, strict=True))
        above = first
        for part in others:
            above.below, above.descriptor.below = part, addressof(part.descriptor)
            above = part
        return first

    def parts(self) -> Iterator[Self]:
        """This weight and what stands below it."""
        part: Self | None = self
        while part is not None:
            yield part
            part = part.below


def parts_of(weight: DenseWeight | Int8Weight | Int4Weight | BlockWeight) -> tuple[str, int, tuple[Tensor, ...]]:
    """Name of the format, inputs of a group (0: the packer's choice), and values [O, I], scales and zeros."""
    match weight:
        case Int8Weight():
            return "int8", 0, (weight.values_OI, weight.scales_O)
        case Int4Weight():
            return "int4", weight.group_size, (weight.values_OI, weight.scales_OG, weight.zeros_OG)
        case DenseWeight():
            assert weight.dtype in (torch.float32, torch.bfloat16), weight.dtype
            return str(weight.dtype).removeprefix("torch."), 0, (weight.values_OI,)
        case BlockWeight():
            return weight.block_type, 0, (weight.blocks_OB,)
