"""Weights in 8 and 4 bits: how far they may be off, and what must not happen at the edges."""

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import FUSED, REFERENCE, TorchBackend
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import WeightFormat
from forerun.model import quantise as module
from forerun.model.quantise import dequantise, group_size_of, in_groups, quantise, weight_bytes
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight

SHAPES = [(5, 1), (3, 31), (4, 33), (7, 160), (2, 64), (6, 704), (3, 128), (1, 200), (9, 256)]
FORMATS: tuple[WeightFormat, ...] = ("int8", "int4")


def random_weight(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of different sizes, with outliers."""
    generator = torch.Generator().manual_seed(sum(shape))
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight *= 10.0 ** torch.randn(shape[0], 1, generator=generator, dtype=torch.float64)
    return (weight * (1.0 + 6.0 * (torch.rand(shape, generator=generator) > 0.97))).to(dtype)


def int8(weight: Tensor) -> Int8Weight:
    quantised = quantise(weight, "int8")
    assert isinstance(quantised, Int8Weight)
    return quantised


def int4(weight: Tensor) -> Int4Weight:
    quantised = quantise(weight, "int4")
    assert isinstance(quantised, Int4Weight)
    return quantised


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_int8_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        weight = random_weight(*shape, dtype=dtype)
        quantised = int8(weight)
        assert (quantised.values_OI.dtype, quantised.values_OI.shape) == (torch.int8, shape)
        assert (quantised.scales_O.dtype, quantised.scales_O.shape) == (torch.float32, shape[:1])
        assert quantised.values_OI.abs().amax(1).tolist() == [127] * shape[0], "the largest weight of an output is 127"
        assert quantised.dtype == dtype
        half_step_O1 = quantised.scales_O[:, None] / 2
        assert ((dequantise(quantised) - weight.float()).abs() <= half_step_O1 * (1 + 1e-4)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_group_of_int4_is_off_by_no_more_than_half_a_fifteenth_of_its_range(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        weight = random_weight(*shape, dtype=dtype)
        quantised = int4(weight)
        size = quantised.group_size
        num_groups = -(-shape[1] // quantised.group_size)
        assert (quantised.values_OI.dtype, quantised.values_OI.shape) == (torch.uint8, shape)
        assert (quantised.scales_OG.dtype, quantised.scales_OG.shape) == (torch.float32, (shape[0], num_groups))
        assert (quantised.zeros_OG.dtype, quantised.zeros_OG.shape) == (torch.uint8, (shape[0], num_groups))
        assert max(quantised.values_OI.max(), quantised.zeros_OG.max()) <= 15
        plain_OGN = in_groups(weight.float(), size)
        step_OG = (plain_OGN.amax(-1).clamp(min=0) - plain_OGN.amin(-1).clamp(max=0)) / 15
        error_OG = (in_groups(dequantise(quantised), size) - plain_OGN).square().sum(-1)
        num_N = torch.tensor([min(size, shape[1] - start) for start in range(0, shape[1], size)])
        assert (error_OG <= num_N * (step_OG / 2).square() * (1 + 1e-4)).all()
        assert (quantised.scales_OG <= step_OG).all(), "a larger scale than the range needs"


@pytest.mark.parametrize(
    ("num_in", "size"), [(4096, 128), (704, 64), (160, 32), (64, 64), (33, 32), (8, 32), (1, 32), (896, 128)]
)
def test_groups_are_as_large_as_divides_the_inputs(num_in: int, size: int) -> None:
    assert group_size_of(num_in) == size
    assert int4(random_weight(2, num_in)).group_size == size


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_what_is_not_a_number_is_refused(weight_format: WeightFormat, value: float) -> None:
    weight = random_weight(4, 40)
    weight[3, 39] = value
    with pytest.raises(CheckpointError, match=r"shape \[4, 40\] holds NaN or infinity.*another dtype"):
        quantise(weight, weight_format)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_bits_depend_neither_on_threads_nor_on_blocks_nor_on_other_outputs(
    weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = random_weight(100, 704)
    num_threads = torch.get_num_threads()
    found = []
    for threads, block in ((1, 1 << 21), (2, 1 << 21), (2, 5000)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(module, "ELEMENTS_PER_BLOCK", block)
        found.append(dequantise(quantise(weight, weight_format)))
    torch.set_num_threads(num_threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][17:18], dequantise(quantise(weight[17:18].clone(), weight_format)))


def test_bits_are_the_same_in_every_version() -> None:
    """A text written with quantised weights can be written again only if the weights are rounded alike."""
    weight = ((torch.arange(3 * 40, dtype=torch.float64) * 37 % 101 - 45) / 64).float().view(3, 40)
    of_8_bits = int8(weight)
    of_4_bits = int4(weight)
    assert of_8_bits.values_OI[1, :6].tolist() == [49, -101, -14, 73, -78, 9]
    assert of_4_bits.zeros_OG.tolist() == [[7, 6], [7, 6], [7, 8]]
    assert of_4_bits.values_OI[2, 30:36].tolist() == [5, 11, 0, 7, 14, 2]


def test_bytes_are_those_of_values_scales_and_zeros() -> None:
    assert weight_bytes((10, 704), "int8") == 10 * 704 + 10 * 4
    assert weight_bytes((10, 704), "int4") == 10 * 352 + 10 * 11 * (4 + 1)
    assert weight_bytes((3, 33), "int4") == 3 * 17 + 3 * 2 * (4 + 1)
    assert weight_bytes((10, 704), "plain", 2) == 2 * 7040


@pytest.mark.parametrize("kernels", [REFERENCE, FUSED], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_quantised_weight_multiplies_as_the_plain_one_it_stands_for(
    weight_format: WeightFormat, dtype: torch.dtype, kernels: TorchBackend
) -> None:
    weight = random_weight(24, 50, dtype=dtype)
    bias = random_weight(1, 24, dtype=dtype)[0]
    quantised = quantise(weight, weight_format)
    x_TI = random_weight(3, 50, dtype=dtype)
    expected = kernels.ops.pack_linear(DenseWeight(values_OI=dequantise(quantised).to(dtype)), bias)(x_TI)
    actual = kernels.ops.pack_linear(quantised, bias)(x_TI)
    assert actual.dtype == dtype
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, kernels.ops.pack_linear(DenseWeight(values_OI=weight), bias)(x_TI))
