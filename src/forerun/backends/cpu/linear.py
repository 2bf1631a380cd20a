"""A weight in the native kernels' packed layout.

Legend: I input features, O output features.
"""

import weakref
from collections.abc import Iterator
from ctypes import addressof, byref
from typing import Self

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import FORMATS, NativeLinear, Source
from forerun.backends.cpu.packed_file import PackedFile, rows_packed
from forerun.core.threads import kernel_threads
from forerun.model.weights import (
    BlockWeight,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    PlainWeight,
    StackedWeight,
    Weight,
    tensors_of,
)


class PackedLinear:
    """A packed weight, which owns and frees its memory. Created by `pack`.

    Args:
        descriptor: the struct that the C++ code reads.
        num_bytes: size of the weight with its scales and bias.
        memory: the object that owns the memory; None: this object owns it.
    """

    below: Self | None = None

    def __init__(self, descriptor: NativeLinear, num_bytes: int, memory: object = None) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        self._memory = memory
        if memory is None:
            weakref.finalize(self, library().forerun_free, descriptor.weights)

    @classmethod
    def pack(
        cls,
        weight: Weight,
        bias_O: Tensor | None,
        *,
        paired: int = 0,
        rounds_inputs: bool = True,
        name: str = "",
        file: PackedFile | None = None,
    ) -> Self:
        """Copy a weight [O, I] into the kernels' layout, with torch's number of threads. Block-quantized weights stay
        quantized, at about the same size.

        Args:
            bias_O: any floating dtype, or None.
            name: the weight's name in its model.
            file: file of packed block-quantized weights, to map or to write.
            paired: if the weight is gate rows followed by as many up rows, the number of rows of each; else 0.
            rounds_inputs: for int8 weights: round the inputs to int8 as well, instead of keeping them in float32.

        Raises:
            MemoryError: not enough memory for the copy.
            CheckpointError: the weight is read from its file and the file cannot be read.
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
        """Pack all parts; returns the first, from which `below` links to the next."""
        sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(sizes) if bias_O is None else torch.split(bias_O, sizes)
        first, *others = (
            cls.pack(part, bias, name=f"{name} {number}", file=file)
            for number, (part, bias) in enumerate(zip(weight.parts, biases, strict=True))
        )
        above = first
        for part in others:
            above.below = part
            above.descriptor.below = addressof(part.descriptor)
            above = part
        return first

    def parts(self) -> Iterator[Self]:
        """This weight and the parts linked by `below`."""
        part: Self | None = self
        while part is not None:
            yield part
            part = part.below


def format_of(weight: PlainWeight | BlockWeight) -> tuple[str, int]:
    """Name of the format, and group size; 0 leaves the group size to the packer."""
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


def values_packed(descriptor: NativeLinear, source: Source, weight: PlainWeight | BlockWeight) -> int:
    """Pack a weight that is in memory; returns its packed size in bytes, 0 if there is not enough memory."""
    parts = [weight.blocks_OB] if isinstance(weight, BlockWeight) else tensors_of(weight).values()
    held = [part.contiguous() for part in parts]  # kept alive until they are copied
    for name, part in zip(("values", "scales", "zeros"), held, strict=False):
        setattr(source, name, part.data_ptr())
    source.places = None
    return int(library().forerun_pack(byref(descriptor), byref(source), kernel_threads()))
