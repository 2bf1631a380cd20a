"""A packed weight is read code by code as its format says, whatever its shape."""

import pytest
import torch

from forerun.checkpoints.huggingface.names import TensorPlace
from forerun.checkpoints.huggingface.packed_tensors import packed_places, unpack
from forerun.checkpoints.huggingface.packing import Method, Packing
from forerun.core.errors import CheckpointError
from forerun.model.quantise import dequantise
from tests.checkpoints.packed import METHODS, Codes, dequantised, tensors_of

NAMES: dict[str, Method] = {"awq": "awq", "gptq": "gptq", "compressed": "compressed-tensors"}
SHAPES = [(8, 32), (16, 128), (24, 96), (8, 256), (40, 384), (64, 160)]  # of any method


def packing_of(method: str, group_size: int | None) -> Packing:
    return Packing(
        method=NAMES[method.split("_")[0]],
        group_size=group_size,
        is_symmetric=method.endswith("_sym"),
        zero_offset=0 if method == "gptq_v2" or not method.startswith("gptq") else 1,
    )


def check(method: str, shape: tuple[int, int], group_size: int | None, dtype: torch.dtype) -> None:
    """Exactly: no code times a scale of 16 bits is rounded in float32."""
    packing = packing_of(method, group_size)
    size = group_size or shape[1]
    tensors = tensors_of(method, Codes.random(*shape, size, method, dtype, seed=shape[0] + shape[1]))
    places = packed_places(packing, TensorPlace(name="w", shape=shape))
    for name, place in places.items():
        assert tuple(tensors[name].shape) == place.shape
    weight = unpack(packing, tensors, shape, torch.bfloat16)
    assert (weight.shape, weight.dtype) == (shape, torch.bfloat16)
    assert weight.group_size in (32, 64, 128)
    assert weight.scales_OG.shape == weight.zeros_OG.shape == (shape[0], -(-shape[1] // weight.group_size))
    assert torch.equal(dequantise(weight).double(), dequantised(method, tensors, size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_group_size_gives_the_weight_bit_by_bit(method: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    for group_size in (None, 32, 64, 96, 128, 256):
        if group_size is None or shape[1] % group_size == 0 or method.startswith("gptq"):
            check(method, shape, group_size, dtype)


def test_a_stored_zero_of_15_is_0_in_the_first_version_of_gptq() -> None:
    weight = Codes.random(8, 32, 32, "gptq", torch.float16, seed=1)
    tensors = tensors_of("gptq", weight) | {"qzeros": torch.tensor([[-1]], dtype=torch.int32)}
    assert unpack(packing_of("gptq", 32), tensors, (8, 32), torch.float32).zeros_OG.eq(0).all()


def test_a_symmetric_gptq_zero_is_8_under_either_versions_name() -> None:
    tensors = tensors_of("gptq_sym", Codes.random(8, 64, 32, "gptq_sym", torch.float16, seed=1))
    for stored in (0x77777777, 0x88888888 - (1 << 32)):
        tensors["qzeros"] = torch.full((2, 1), stored, dtype=torch.int32)
        assert unpack(packing_of("gptq_sym", 32), tensors, (8, 64), torch.float32).zeros_OG.eq(8).all()
    tensors["qzeros"][1, 0] = 0x77777777
    with pytest.raises(CheckpointError, match="qzeros holds numbers from 7 to 8"):
        unpack(packing_of("gptq_sym", 32), tensors, (8, 64), torch.float32)
