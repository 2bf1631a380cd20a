"""A linear layer of a draft head, which the native kernels run separately.

Legend: T rows, I input features, O output features.
"""

from ctypes import byref
from typing import Final

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import EPILOGUES
from forerun.backends.cpu.linear import PackedLinear
from forerun.model.weights import Weight
from forerun.runtime.threads import kernel_threads

INPUT_BITS: Final = 8  # of the inputs of GGUF weights, as in every draft


class DraftLinear:
    """A packed weight with its bias; rows of any leading dimensions in float32."""

    def __init__(self, weight: Weight, bias_O: Tensor | None = None) -> None:
        self._parts = list(PackedLinear.pack(weight, bias_O).parts())
        for part in self._parts:
            part.descriptor.input_bits = INPUT_BITS

    def __call__(self, x: Tensor) -> Tensor:
        """[..., O] of x [..., I]."""
        x_TI = x.reshape(-1, x.shape[-1]).float().contiguous()
        outputs = [self._multiply(part, x_TI) for part in self._parts]
        y_TO = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return y_TO.view(*x.shape[:-1], y_TO.shape[1])

    @staticmethod
    def _multiply(part: PackedLinear, x_TI: Tensor) -> Tensor:
        descriptor, num_rows = part.descriptor, len(x_TI)
        y_TO = torch.empty(num_rows, descriptor.num_out)
        if num_rows:
            library().forerun_linear(
                byref(descriptor), x_TI.data_ptr(), num_rows, y_TO.data_ptr(), None, EPILOGUES["store"],
                kernel_threads(),
            )  # fmt: skip
        return y_TO
