"""Native linear layers of every format and instruction set against float64, on odd shapes.

Bounds are those of a float32 sum of so many terms, relative to the sum of their sizes: inputs are rounded here as the
kernels round them, so nothing else may differ.
"""

from ctypes import byref
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.layouts import EPILOGUES
from forerun.model.gguf_block_types import BLOCKS, BlockType
from forerun.model.gguf_blocks import dequantise_blocks
from forerun.model.quantise import dequantise, quantise
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, Weight
from tests.backends.cpu.ops import Product, linear_functions
from tests.blocks import random_blocks

pytestmark = pytest.mark.usefixtures("tier")
EIGHT_BITS: Final = " by 8 bits"  # behind a type of blocks: inputs are rounded to so many
AS_STORED: Final = ("float32", "bfloat16", "int8", "int4", "int8_wide", *BLOCKS)
FORMATS: Final = (*AS_STORED, *(kind + EIGHT_BITS for kind in BLOCKS))
ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 33, 64, 100)  # less than, all of, and more than any block of rows
ROUNDING: Final = 2.0**-24
MOST_OF_BLOCKS: Final = 127 * 256 + 127  # inputs beside blocks of codes are whole numbers of 16 bits


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block_type_of(name: str) -> BlockType | None:
    return next((kind for kind in BLOCKS if name.removesuffix(EIGHT_BITS) == kind), None)


def weight_of(name: str, num_out: int, num_in: int) -> Weight:
    """Of about so many inputs: blocks are whole."""
    if (kind := block_type_of(name)) is not None:
        num_blocks = -(-num_in // BLOCKS[kind].num_elements)
        blocks_OB = random_blocks(kind, seed=num_out + num_in, num_out=num_out, blocks_in_row=num_blocks)
        return BlockWeight(blocks_OB=blocks_OB, block_type=kind)
    weight_OI = random_tensor(num_out, num_in, seed=num_out + num_in)
    match name:
        case "int8" | "int8_wide":
            return quantise(weight_OI, "int8")
        case "int4":
            return quantise(weight_OI, "int4")
        case _:
            return DenseWeight(values_OI=weight_OI.to(getattr(torch, name)))


def packed(name: str, weight: Weight, bias_O: Tensor | None = None, paired: int = 0) -> Product:
    linear = Product.pack(weight, bias_O, paired=paired, rounds_inputs=name != "int8_wide")
    linear.descriptor.input_bits = 8 if name.endswith(EIGHT_BITS) else 16
    return linear


def rounded(name: str, x_TI: Tensor, linear: Product) -> tuple[Tensor, int]:
    """Inputs as the kernel sees them, float64, and how many roundings a sum of products takes."""
    if name == "bfloat16":
        return x_TI.bfloat16().double(), x_TI.shape[1] + 2
    if name in ("float32", "int8_wide"):
        return x_TI.double(), x_TI.shape[1] + 2
    most = MOST_OF_BLOCKS if name in BLOCKS else 127
    group = linear.descriptor.group
    num_in = x_TI.shape[1]
    padded = torch.nn.functional.pad(x_TI, (0, -num_in % group)).view(len(x_TI), -1, group)
    largest = padded.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.tensor(float(most)) / largest, 0.0)  # a plain number would be multiplied
    values = (padded * inverse).round().double() * (largest / most).double()
    return values.flatten(1)[:, :num_in], padded.shape[1] + 3


def products(name: str, x_TI: Tensor, weight_OI: Tensor, sizes_OI: Tensor, linear: Product) -> tuple[Tensor, Tensor]:
    """x W^T in float64, and how far a float32 sum may be from it. A weight's sizes are its `magnitudes`."""
    inputs, roundings = rounded(name, x_TI, linear)
    return inputs @ weight_OI.T, 2 * roundings * ROUNDING * (inputs.abs() @ sizes_OI.T) + 1e-30


def exact(weight: Weight) -> Tensor:
    """The weight in float64."""
    if isinstance(weight, DenseWeight):
        return weight.values_OI.double()
    if isinstance(weight, BlockWeight):
        return dequantise(weight).double()
    if isinstance(weight, Int8Weight):
        return weight.values_OI.double() * weight.scales_O.double()[:, None]
    assert isinstance(weight, Int4Weight)
    scales, zeros = (
        part.double().repeat_interleave(weight.group_size, 1)[:, : weight.values_OI.shape[1]]
        for part in (weight.scales_OG, weight.zeros_OG)
    )
    return (weight.values_OI.double() - zeros) * scales


def magnitudes(weight: Weight) -> Tensor:
    """Of what is added: codes with their scale, and minima beside them."""
    if not isinstance(weight, BlockWeight) or weight.block_type not in ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"):
        return exact(weight).abs()
    first = 82 if weight.block_type == "Q2_K" else 2
    blocks = weight.blocks_OB.reshape(-1, BLOCKS[weight.block_type].num_bytes).clone()
    blocks[:, first : first + 2] = 0  # what multiplies the minima
    scaled_OI = dequantise_blocks(blocks.view_as(weight.blocks_OB), weight.block_type).double()
    return scaled_OI.abs() + (exact(weight) - scaled_OI).abs()


def close(y: Tensor, expected: Tensor, bound: Tensor) -> bool:
    return bool(((y.double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("name", FORMATS)
def test_products_are_those_of_float64(name: str) -> None:
    for num_out, num_in in ((1, 1), (5, 3), (16, 32), (17, 31), (33, 100), (50, 257), (40, 640), (70, 1152)):
        weight = weight_of(name, num_out, num_in)
        linear = packed(name, weight)
        weight_OI = exact(weight)
        sizes_OI = magnitudes(weight)
        for num_rows in ROWS:
            x_TI = random_tensor(num_rows, weight.shape[1], seed=num_rows)
            assert close(linear(x_TI), *products(name, x_TI, weight_OI, sizes_OI, linear)), (num_out, num_in, num_rows)


def test_the_largest_scale_of_mxfp4_is_a_power_of_two_as_in_ggml() -> None:
    """The standard's NaN is 2^127 there, so that zeros stay zeros."""
    blocks_OB = torch.zeros(5, 4 * BLOCKS["MXFP4"].num_bytes, dtype=torch.uint8)
    blocks_OB[:, :: BLOCKS["MXFP4"].num_bytes] = 255
    linear = packed("MXFP4", BlockWeight(blocks_OB=blocks_OB, block_type="MXFP4"))
    assert not linear(random_tensor(3, 128, seed=1)).any()


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_the_same_bits_in_any_company(name: str) -> None:
    for num_out, num_in in ((3, 5), (50, 1152)):
        weight = weight_of(name, num_out, num_in)
        linear = packed(name, weight, random_tensor(num_out, seed=9))
        x_TI = random_tensor(max(ROWS), weight.shape[1], seed=1)
        alone = torch.cat([linear(row[None]) for row in x_TI])
        x_TI[50] = 1e30  # rows between: large, or not numbers
        for num_rows in ROWS:
            for first in (0, min(7, max(ROWS) - num_rows)):
                kept = [row for row in range(num_rows) if first + row != 50]
                y_TO = linear(x_TI[first : first + num_rows])
                assert torch.equal(y_TO[kept], alone[first : first + num_rows][kept]), (num_rows, first)


@pytest.mark.parametrize("name", AS_STORED)
def test_threads_change_no_bit(name: str) -> None:
    for num_threads in (2, 3):
        weight = weight_of(name, 200, 160)
        linear = packed(name, weight)
        x_TI = random_tensor(13, weight.shape[1], seed=2)
        y_TO = torch.empty(13, 200)
        linear_functions().forerun_linear(
            byref(linear.descriptor), x_TI.data_ptr(), 13, y_TO.data_ptr(), None, EPILOGUES["store"], num_threads
        )
        assert torch.equal(y_TO, linear(x_TI))


@pytest.mark.parametrize("name", AS_STORED)
def test_any_cut_of_panels_gives_the_whole_and_touches_nothing_else(name: str) -> None:
    for paired in (0, 27):
        num_out = 2 * paired or 54
        weight = weight_of(name, num_out, 96)
        linear = packed(name, weight, paired=paired)
        x_TI = random_tensor(5, weight.shape[1], seed=3)
        whole = linear(x_TI)
        owners = torch.arange(num_out) // 16 if not paired else torch.arange(num_out) % paired // 16 * 2
        for begin in range(0, 4, 2):
            for end in range(begin + 2, 5, 2):
                memory = torch.full((6, num_out), 7.0)
                linear_functions().forerun_linear_slice(
                    byref(linear.descriptor), x_TI.data_ptr(), 5, begin, end, memory.data_ptr()
                )
                own = (owners >= begin) & (owners < end)
                assert torch.equal(memory[:5, own], whole[:, own]), (begin, end)
                assert memory[:5, ~own].eq(7.0).all(), (begin, end)
                assert memory[5].eq(7.0).all(), (begin, end)


@pytest.mark.parametrize("name", AS_STORED)
def test_gate_and_up_side_by_side_or_multiplied(name: str) -> None:
    for half in (1, 16, 21):
        weight = weight_of(name, 2 * half, 100)
        bias = random_tensor(2 * half, seed=4)
        linear = packed(name, weight, bias, half)
        plain = packed(name, weight, bias)
        for num_rows in (1, 5, 9):
            x_TI = random_tensor(num_rows, weight.shape[1], seed=num_rows) / 4
            both = linear(x_TI)
            assert torch.equal(both, plain(x_TI))
            gate, up = both.double().chunk(2, -1)
            torch.testing.assert_close(linear.silu_mul(x_TI).double(), gate * gate.sigmoid() * up, atol=1e-7, rtol=2e-6)


@pytest.mark.parametrize("name", AS_STORED)
def test_bias_is_added_and_then_the_residual_also_in_place(name: str) -> None:
    weight = weight_of(name, 37, 64)
    bias = random_tensor(37, seed=5)
    x_TI = random_tensor(9, weight.shape[1], seed=6)
    residual = random_tensor(9, 37, seed=7)
    linear = packed(name, weight, bias)
    biased = packed(name, weight)(x_TI) + bias
    assert torch.equal(linear(x_TI), biased)
    assert torch.equal(linear(x_TI, residual), residual + biased)
    linear_functions().forerun_linear(
        byref(linear.descriptor), x_TI.data_ptr(), 9, residual.data_ptr(), residual.data_ptr(), EPILOGUES["add"], 1
    )
    assert torch.equal(residual, linear(x_TI, random_tensor(9, 37, seed=7)))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_number_shows_in_every_output_of_its_row(name: str) -> None:
    for flaw in (float("nan"), float("inf"), float("-inf")):
        weight = weight_of(name, 20, 200)
        linear = packed(name, weight)
        x_TI = random_tensor(4, weight.shape[1], seed=8)
        x_TI[2, 150] = flaw
        y_TO = linear(x_TI)
        assert not y_TO[2].isfinite().any()
        assert y_TO[[0, 1, 3]].isfinite().all()


def test_a_packed_weight_takes_about_its_own_bytes() -> None:
    for name, num_bytes in (("float32", 4.0), ("bfloat16", 2.0), ("int8", 1.0), ("int4", 0.5 + 5 / 128)):
        linear = packed(name, weight_of(name, 256, 512))
        assert linear.num_bytes == pytest.approx(256 * 512 * num_bytes, rel=0.01), name
    for name, block in BLOCKS.items():
        linear = packed(name, weight_of(name, 256, 512))
        assert linear.num_bytes == pytest.approx(256 * 512 * block.num_bytes / block.num_elements, rel=0.06), name


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_int4_scales_of_16_bits_and_any_zeros_are_exact(group_size: int) -> None:
    """A row is 127 times one input alone, which int8 holds, and so every product 127 times one weight."""
    for scale_dtype in (torch.float16, torch.bfloat16):
        generator = torch.Generator().manual_seed(group_size)
        num_out = 40
        num_in = 256
        weight = Int4Weight(
            values_OI=torch.randint(16, (num_out, num_in), generator=generator, dtype=torch.uint8),
            scales_OG=torch.rand(num_out, num_in // group_size, generator=generator).to(scale_dtype).float(),
            zeros_OG=torch.randint(16, (num_out, num_in // group_size), generator=generator, dtype=torch.uint8),
            group_size=group_size,
        )
        assert torch.equal(packed("int4", weight)(127.0 * torch.eye(num_in)), 127.0 * dequantise(weight).T)
