"""A linear layer of a draft head, which the native kernels run separately.

Legend: T rows, I input features, O output features.
"""

from ctypes import byref
from typing import Final

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import EPILOGUES, NativeLinear
from forerun.backends.cpu.linear import PackedLinear
from forerun.core.threads import kernel_threads

INPUT_BITS: Final = 8  # of the inputs of GGUF weights, as in every draft


class DraftLinear:
    """A packed weight with its bias, of the draft's own or of the target; rows of any leading dimensions in float32."""

    def __init__(self, weight: PackedLinear) -> None:
        self._weight = weight  # owns the memory
        self._parts = [NativeLinear.from_buffer_copy(part.descriptor) for part in weight.parts()]
        for part in self._parts:
            part.input_bits = INPUT_BITS

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight."""
        return sum(part.num_bytes for part in self._weight.parts())

    def __call__(self, x: Tensor) -> Tensor:
        """[..., O] of x [..., I]."""
        x_TI = x.reshape(-1, x.shape[-1]).float().contiguous()
        outputs = [self._multiply(part, x_TI) for part in self._parts]
        y_TO = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return y_TO.view(*x.shape[:-1], y_TO.shape[1])

    @staticmethod
    def _multiply(part: NativeLinear, x_TI: Tensor) -> Tensor:
        num_rows = len(x_TI)
        y_TO = torch.empty(num_rows, part.num_out)
        if num_rows:
            library().forerun_linear(
                byref(part),
                x_TI.data_ptr(),
                num_rows,
                y_TO.data_ptr(),
                None,
                EPILOGUES["store"],
                kernel_threads(),
            )
        return y_TO
