"""y = x W^T + b with a weight laid out for the native kernels; rows are the same bits in any company.

Legend: T rows, I input features, O output features, G groups of consecutive input features.
"""

import weakref
from ctypes import CDLL, POINTER, Structure, byref, c_int, c_int64, c_uint64, c_void_p
from functools import cache

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import EPILOGUES, FORMATS, NativeLinear
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight, Weight


class Source(Structure):
    """A weight as it comes, see cpp/pack.h."""

    _fields_ = (("values", c_void_p), ("scales", c_void_p), ("zeros", c_void_p), ("bias", c_void_p))


@cache
def functions() -> CDLL:
    """The library, with what its functions of linears take."""
    found = library()
    found.forerun_pack.argtypes = (POINTER(NativeLinear), POINTER(Source))
    found.forerun_pack.restype = c_int64
    found.forerun_free.argtypes = (c_void_p,)
    found.forerun_free.restype = None
    found.forerun_linear.argtypes = (POINTER(NativeLinear), c_void_p, c_int, c_void_p, c_void_p, c_int, c_int)
    found.forerun_linear.restype = None
    found.forerun_linear_slice.argtypes = (POINTER(NativeLinear), c_void_p, c_int, c_int, c_int, c_void_p)
    found.forerun_linear_slice.restype = None
    found.forerun_read.argtypes = (c_void_p, c_int64, c_int)
    found.forerun_read.restype = c_uint64
    return found


class PackedLinear:
    """A packed weight, which frees its memory when it goes. Made by `pack`.

    Args:
        descriptor: what C code reads.
        num_bytes: that the weight, its scales and its bias take.
    """

    def __init__(self, descriptor: NativeLinear, num_bytes: int) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        self.num_out, self.num_in = int(descriptor.num_out), int(descriptor.num_in)
        weakref.finalize(self, functions().forerun_free, descriptor.weights)

    @classmethod
    def pack(
        cls, weight: Weight, bias_O: Tensor | None, *, paired: int = 0, rounds_inputs: bool = True
    ) -> "PackedLinear":
        """Copy a weight [O, I] of float32, bfloat16, int8 or int4 into the kernels' own layout.

        Args:
            bias_O: of any floating dtype, or None.
            paired: of a weight of gate rows and as many up rows below them, how many each has; else 0.
            rounds_inputs: of an int8 weight, whether inputs are rounded to int8 as well; else they stay float32.

        Raises:
            MemoryError: there is no room for the copy.
        """
        values, scales, zeros, name, group = parts(weight)
        num_out, num_in = values.shape
        assert paired in (0, num_out / 2), (paired, num_out)
        bias = None if bias_O is None else bias_O.float().contiguous()
        if not rounds_inputs:
            assert name == "int8", name
            name = "int8_wide"
        descriptor = NativeLinear(format=FORMATS[name], num_out=num_out, num_in=num_in, group=group, paired=paired)
        source = Source(*(None if part is None else part.data_ptr() for part in (values, scales, zeros, bias)))
        num_bytes = functions().forerun_pack(byref(descriptor), byref(source))
        if not num_bytes:
            raise MemoryError(f"no memory for a weight of {num_out} x {num_in} as {name}")
        return cls(descriptor, num_bytes)

    def __call__(self, x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """x W^T + b (+ residual), float32 [T, I] to [T, O], on torch's number of threads."""
        y_TO = x_TI.new_empty(len(x_TI), self.num_out)
        return self._run(x_TI, y_TO, residual_TO, "store" if residual_TO is None else "add")

    def silu_mul(self, x_TI: Tensor) -> Tensor:
        """silu(gate) * up of the products with a paired weight, float32 [T, I] to [T, O / 2]."""
        assert self.descriptor.paired, "gate and up"
        return self._run(x_TI, x_TI.new_empty(len(x_TI), self.num_out // 2), None, "silu_mul")

    def _run(self, x_TI: Tensor, y: Tensor, residual: Tensor | None, epilogue: str) -> Tensor:
        assert x_TI.dtype == torch.float32, x_TI.dtype
        assert x_TI.shape[1] == self.num_in, x_TI.shape
        if residual is not None:
            assert residual.dtype == torch.float32, residual.dtype
            assert residual.shape == y.shape, residual.shape
            residual = residual.contiguous()
        x_TI = x_TI.contiguous()
        functions().forerun_linear(
            byref(self.descriptor), x_TI.data_ptr(), len(x_TI), y.data_ptr(),
            None if residual is None else residual.data_ptr(), EPILOGUES[epilogue], torch.get_num_threads(),
        )  # fmt: skip
        return y


def parts(weight: Weight) -> tuple[Tensor, Tensor | None, Tensor | None, str, int]:
    """Values [O, I], scales, zeros, name of the format, and input features of a group (0: the packer's choice)."""
    match weight:
        case Int8Weight():
            return weight.values_OI.contiguous(), weight.scales_O.contiguous(), None, "int8", 0
        case Int4Weight():
            scales, zeros = weight.scales_OG.contiguous(), weight.zeros_OG.contiguous()
            return weight.values_OI.contiguous(), scales, zeros, "int4", weight.group_size
        case DenseWeight():
            assert weight.dtype in (torch.float32, torch.bfloat16), weight.dtype
            return weight.values_OI.contiguous(), None, None, str(weight.dtype).removeprefix("torch."), 0
