"""The experts of a layer as the arrays that the C++ library reads."""

from collections.abc import Mapping, Sequence
from ctypes import addressof
from typing import Final

from forerun.backends.cpu.layouts import NativeExperts, NativeLinear
from forerun.backends.cpu.linear import PackedLinear
from forerun.core.model_spec import Gate, ModelSpec

EXPERT_GATES: Final[Mapping[Gate, str]] = {"silu": "silu_mul", "gelu_tanh": "gelu_mul", "clamped": "clamped_mul"}


class ExpertArrays:
    """Copies of the descriptors of packed experts, which must be final; the experts keep the weights."""

    def __init__(self, experts: Sequence[tuple[PackedLinear, PackedLinear]]) -> None:
        count = len(experts)
        self._gate_up = (NativeLinear * count)(*(gate_up.descriptor for gate_up, _ in experts))
        self._out = (NativeLinear * count)(*(out.descriptor for _, out in experts))
        self._described = NativeExperts(gate_up=addressof(self._gate_up), out=addressof(self._out))

    def describe(self, spec: ModelSpec, numbers: Mapping[str, int]) -> int:
        """The address of the struct for a program whose buffers have these numbers, which are the same each time."""
        own = self._described
        own.num_experts = spec.num_experts
        own.num_chosen = spec.num_chosen_experts
        own.router, own.gated, own.products = (numbers[name] for name in ("router", "expert_gated", "expert_products"))
        return addressof(own)
