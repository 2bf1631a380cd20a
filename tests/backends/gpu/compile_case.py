"""Models whose shapes kernels are tried with where there may be no GPU, and their tensors without memory.

Legend: O output features, I input features, G groups of inputs, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.quantise import group_size_of, output_format
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight, Weight
from tests.backends.gpu.compiling import compiling
from tests.backends.gpu.resources import Resources, launch_resources

DEVICE: Final = "meta"
COMPUTE: Final = torch.bfloat16
MAX_ROWS: Final = 64
MAX_TREE: Final = 128  # tree slots of a row
NUM_SLOTS: Final = 8192
OLDEST_WITH_OVERLAP: Final = 90  # the first architecture that starts a kernel while the one before runs
VOCAB_SIZE: Final = 128256


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """One launcher with the shapes of a model.

    Args:
        launch: given whether kernels overlap.
        is_product: matrix units are meant to be used.
        packed: the weight, if there is one.
        is_counted: its instructions are of interest although it is no product.
    """

    name: str
    model: str
    num_rows: int
    launch: Callable[[bool], None]
    is_product: bool = True
    packed: DeviceLinear | None = None
    is_counted: bool = False

    def inspect(self, architecture: int) -> list[Resources]:
        """What each kernel that it launches takes."""
        with compiling(architecture) as launches:
            self.launch(architecture >= OLDEST_WITH_OVERLAP)
        return [launch_resources(launch, with_code=self.is_product or self.is_counted) for launch in launches]


def llama(*, num_layers: int, hidden_size: int, num_heads: int, head_dim: int, intermediate_size: int) -> ModelSpec:
    """One of the Llama 3 models."""
    return ModelSpec(
        family="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        vocab_size=VOCAB_SIZE,
        max_positions=131072,
        norm_eps=1e-5,
    )


MODELS: Final = {
    "Llama-3.2-1B": llama(num_layers=16, hidden_size=2048, num_heads=32, head_dim=64, intermediate_size=8192),
    "Llama-3.1-8B": llama(num_layers=32, hidden_size=4096, num_heads=32, head_dim=128, intermediate_size=14336),
    "Llama-3.1-70B": llama(num_layers=80, hidden_size=8192, num_heads=64, head_dim=128, intermediate_size=28672),
}


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def row_table() -> RowTable:
    """Rows of a pass."""
    return RowTable(max_rows=MAX_ROWS, max_tree_slots=MAX_ROWS * MAX_TREE, num_sublayers=64, device=DEVICE)


def cache(spec: ModelSpec) -> Tensor:
    """[2, L, S, K, D]: keys and values of every layer."""
    return empty(2, spec.num_layers, NUM_SLOTS, spec.num_kv_heads, spec.head_dim, dtype=COMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedModel:
    """The linear layers of one layer, and the head."""

    qkv: DeviceLinear
    attention_out: DeviceLinear
    gate_up: DeviceLinear
    mlp_out: DeviceLinear
    head: DeviceLinear


def packed_model(spec: ModelSpec, weight_format: WeightFormat) -> PackedModel:
    """A model's weights in a format."""
    hidden = spec.hidden_size
    middle = spec.intermediate_size
    qkv = weight(spec.q_size + 2 * spec.kv_size, hidden, weight_format)
    return PackedModel(
        qkv=pack(qkv, None, compute=COMPUTE, head_dim=spec.head_dim),
        attention_out=pack(weight(hidden, spec.q_size, weight_format), None, compute=COMPUTE),
        gate_up=pack(weight(2 * middle, hidden, weight_format), None, compute=COMPUTE, paired=True),
        mlp_out=pack(weight(hidden, middle, weight_format), None, compute=COMPUTE),
        head=pack(weight(spec.vocab_size, hidden, output_format(weight_format)), None, compute=COMPUTE),
    )


def weight(num_out: int, num_in: int, weight_format: WeightFormat, dtype: torch.dtype = COMPUTE) -> Weight:
    """A weight [O, I] in a format."""
    match weight_format:
        case "plain":
            return DenseWeight(values_OI=empty(num_out, num_in, dtype=dtype))
        case "int8":
            values_OI = empty(num_out, num_in, dtype=torch.int8)
            return Int8Weight(values_OI=values_OI, scales_O=empty(num_out), dtype=dtype)
        case "int4":
            group_size = group_size_of(num_in)
            num_groups = -(-num_in // group_size)
            return Int4Weight(
                values_OI=empty(num_out, num_in, dtype=torch.uint8),
                scales_OG=empty(num_out, num_groups),
                zeros_OG=empty(num_out, num_groups, dtype=torch.uint8),
                group_size=group_size,
                dtype=dtype,
            )
