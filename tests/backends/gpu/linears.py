"""Small weights, rows and buffers for the tests of linear layers, and what must come out in float64."""

from dataclasses import replace

import torch
from torch import Tensor

from forerun.backends.gpu.passes.linear_buffers import InputNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import dequantise, quantise
from forerun.model.weights import Weight

FORMATS: tuple[WeightFormat, ...] = ("plain", "int8", "int4")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_ROWS = 40
POISON = float("nan")


def random_rows(num_in: int, dtype: torch.dtype, *, num_rows: int = MOST_ROWS, seed: int = 1) -> Tensor:
    return torch.randn(num_rows, num_in, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_weight(
    num_out: int, num_in: int, weight_format: WeightFormat, dtype: torch.dtype, *, seed: int = 0
) -> Weight:
    return quantise(random_rows(num_in, dtype, num_rows=num_out, seed=seed), weight_format)


def pack_split(
    weight: Weight,
    bias_O: Tensor | None,
    *,
    compute: torch.dtype,
    num_splits: int,
    paired: bool = False,
    head_dim: int | None = None,
    block_in: int | None = None,
) -> DeviceLinear:
    """As a large weight is packed, whose inputs several programs share."""
    packed = pack(weight, bias_O, compute=compute, paired=paired, head_dim=head_dim)
    tiles = replace(packed.tiles, num_splits=num_splits, block_in=block_in or packed.tiles.block_in)
    return replace(packed, tiles=tiles)


def workspace_of(packed: DeviceLinear) -> SplitWorkspace:
    return SplitWorkspace.for_linears([packed], max_rows=MOST_ROWS, device="cpu")


def product_of(rows: Tensor, weight: Weight, bias_O: Tensor | None = None) -> Tensor:
    """In float64."""
    sums = rows.double() @ dequantise(weight).double().T
    return sums if bias_O is None else sums + bias_O.double()


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, POISON, dtype=dtype)


def no_norm() -> InputNorm:
    """One that changes no bit of a row."""
    return InputNorm(squares=torch.zeros(1, MOST_ROWS), shape=NormShape(num_parts=1, size=1, eps=1.0), scale=1.0)


def norm_of(*, scale: float, size: int, num_rows: int = MOST_ROWS) -> tuple[InputNorm, Tensor]:
    """A norm that rows still lack, its sums of squares in three parts; and float64 [rows, 1] to multiply rows by."""
    squares = random_rows(num_rows, torch.float32, num_rows=4, seed=5).square() * size
    norm = InputNorm(squares=squares, shape=NormShape(num_parts=3, size=size, eps=1e-3), scale=scale)
    means = squares[:3].double().sum(0) / size
    return norm, (1.0 / (means + 1e-3).sqrt() / scale)[:, None]
