"""A weight laid out for the native kernels, which multiply it inside a program.

Legend: I input features, O output features.
"""

import weakref
from collections.abc import Iterator
from ctypes import Structure, addressof, byref, c_int32, c_void_p
from io import FileIO
from typing import Self, TypeAlias

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import FORMATS, NativeLinear
from forerun.model.weights import (
    BlockWeight,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    RowsInFile,
    StackedWeight,
    Weight,
)

PlainWeight: TypeAlias = DenseWeight | Int8Weight | Int4Weight | BlockWeight


class Source(Structure):
    """A weight as it comes, see cpp/pack.h."""

    _fields_ = (
        ("values", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("bias", c_void_p),
        ("places", c_void_p),
        ("file", c_int32),
    )


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
        """Copy a weight [O, I] into the kernels' own layout, on torch's number of threads; blocks of codes stay codes,
        about as large as they were.

        Args:
            bias_O: of any floating dtype, or None.
            paired: of a weight of gate rows and as many up rows below them, how many each has; else 0.
            rounds_inputs: of an int8 weight, whether inputs are rounded to int8 as well; else they stay float32.

        Raises:
            MemoryError: there is no room for the copy.
            CheckpointError: the file that the weight is still in cannot be read.
        """
        if isinstance(weight, StackedWeight):
            assert not paired, "gate and up of one format"
            return cls._stack(weight, bias_O)
        name, group = format_of(weight)
        num_out, num_in = weight.shape
        assert paired in (0, num_out / 2), (paired, num_out)
        if not rounds_inputs:
            assert name == "int8", name
            name = "int8_wide"
        descriptor = NativeLinear(format=FORMATS[name], num_out=num_out, num_in=num_in, group=group, paired=paired)
        bias = None if bias_O is None else bias_O.float().contiguous()
        num_bytes = lay_out(descriptor, weight, bias)
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


def format_of(weight: PlainWeight) -> tuple[str, int]:
    """Name of the format, and inputs of a group; 0: the packer's choice."""
    match weight:
        case Int8Weight():
            return "int8", 0
        case Int4Weight():
            return "int4", weight.group_size
        case DenseWeight():
            assert weight.dtype in (torch.float32, torch.bfloat16), weight.dtype
            return str(weight.dtype).removeprefix("torch."), 0
        case BlockWeight():
            return weight.block_type, 0


def tensors_of(weight: PlainWeight) -> tuple[Tensor, ...]:
    """Values [O, I], scales and zeros."""
    match weight:
        case Int8Weight():
            return weight.values_OI, weight.scales_O
        case Int4Weight():
            return weight.values_OI, weight.scales_OG, weight.zeros_OG
        case DenseWeight():
            return (weight.values_OI,)
        case BlockWeight():
            return (weight.blocks_OB,)


def lay_out(descriptor: NativeLinear, weight: PlainWeight, bias_O: Tensor | None) -> int:
    """Have the library lay out a weight; the bytes that it takes, 0 if there is no memory."""
    source = Source(bias=None if bias_O is None else bias_O.data_ptr())
    if isinstance(weight, BlockWeight) and weight.rows is not None:
        num_bytes = lay_out_rows(descriptor, source, weight.rows)
        if num_bytes >= 0:
            weight.rows.tell()
            return num_bytes
    held = [part.contiguous() for part in tensors_of(weight)]  # until they are copied
    for name, part in zip(("values", "scales", "zeros"), held, strict=False):
        setattr(source, name, part.data_ptr())
    source.places = None
    return int(library().forerun_pack(byref(descriptor), byref(source), torch.get_num_threads()))


def lay_out_rows(descriptor: NativeLinear, source: Source, rows: RowsInFile) -> int:
    """The same of rows that are still in a file; negative where it cannot be read, as reading it will say."""
    try:
        with FileIO(rows.path) as file:
            source.places, source.file = rows.places_O.data_ptr(), file.fileno()
            return int(library().forerun_pack(byref(descriptor), byref(source), torch.get_num_threads()))
    except OSError:
        return -1
