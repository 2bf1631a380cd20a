"""A weight laid out for the native kernels, which multiply it inside a program.

Legend: I input features, O output features.
"""

import weakref
from collections.abc import Iterator
from ctypes import addressof, byref
from typing import Self, TypeAlias

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import FORMATS, NativeLinear, Source
from forerun.backends.cpu.packed_file import PackedFile, rows_packed
from forerun.model.weights import (
    BlockWeight,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    StackedWeight,
    Weight,
)

PlainWeight: TypeAlias = DenseWeight | Int8Weight | Int4Weight | BlockWeight


class PackedLinear:
    """A packed weight, which frees its memory when it goes. Made by `pack`.

    Args:
        descriptor: what C code reads.
        num_bytes: that the weight, its scales and its bias take.
        memory: whose it is that they are in; None: the weight's own.
    """

    below: Self | None = None

    def __init__(self, descriptor: NativeLinear, num_bytes: int, memory: object = None) -> None:
        self.descriptor, self.num_bytes, self._memory = descriptor, num_bytes, memory
        if memory is None:
            weakref.finalize(self, library().forerun_free, descriptor.weights)

    @classmethod
    def pack(
        cls, weight: Weight, bias_O: Tensor | None, *, paired: int = 0, rounds_inputs: bool = True, name: str = "",
        file: PackedFile | None = None,
    ) -> Self:  # fmt: skip
        """Copy a weight [O, I] into the kernels' own layout, on torch's number of threads; blocks of codes stay codes,
        about as large as they were.

        Args:
            bias_O: of any floating dtype, or None.
            name: the weight's own in its model.
            file: where blocks of codes are packed already, or to be packed.
            paired: of a weight of gate rows and as many up rows below them, how many each has; else 0.
            rounds_inputs: of an int8 weight, whether inputs are rounded to int8 as well; else they stay float32.

        Raises:
            MemoryError: there is no room for the copy.
            CheckpointError: the file that the weight is still in cannot be read.
        """
        if isinstance(weight, StackedWeight):
            assert not paired, "gate and up of one format"
            return cls._stack(weight, bias_O, name, file)
        kind, group = format_of(weight)
        num_out, num_in = weight.shape
        assert paired in (0, num_out / 2), (paired, num_out)
        if not rounds_inputs:
            assert kind == "int8", kind
            kind = "int8_wide"
        descriptor = NativeLinear(format=FORMATS[kind], num_out=num_out, num_in=num_in, group=group, paired=paired)
        bias = None if bias_O is None else bias_O.float().contiguous()
        source = Source(bias=None if bias is None else bias.data_ptr())
        rows = weight.rows if isinstance(weight, BlockWeight) else None
        if rows is not None and file is not None:
            key = f"{name} {kind} {num_out} {num_in} {paired} {bias is not None}"
            if num_bytes := file.lay_out(key, descriptor, source, rows):
                linear = cls(descriptor, num_bytes, file.memory)
                file.keep(key, linear)
                return linear
        num_bytes = -1 if rows is None else rows_packed(descriptor, source, rows)
        if num_bytes < 0:
            num_bytes = values_packed(descriptor, source, weight)
        if not num_bytes:
            raise MemoryError(f"no memory for a weight of {num_out} x {num_in} as {kind}")
        return cls(descriptor, num_bytes)

    @classmethod
    def _stack(cls, weight: StackedWeight, bias_O: Tensor | None, name: str, file: PackedFile | None) -> Self:
        """The first part, which leads to the others."""
        sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(sizes) if bias_O is None else torch.split(bias_O, sizes)
        first, *others = (
            cls.pack(part, bias, name=f"{name} {number}", file=file)
            for number, (part, bias) in enumerate(zip(weight.parts, biases, strict=True))
        )
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


def values_packed(descriptor: NativeLinear, source: Source, weight: PlainWeight) -> int:
    """Have the library pack a weight that is in memory; the bytes that it takes, 0 if there is no memory."""
    held = [part.contiguous() for part in tensors_of(weight)]  # until they are copied
    for name, part in zip(("values", "scales", "zeros"), held, strict=False):
        setattr(source, name, part.data_ptr())
    source.places = None
    return int(library().forerun_pack(byref(descriptor), byref(source), torch.get_num_threads()))
