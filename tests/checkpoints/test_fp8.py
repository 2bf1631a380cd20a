"""Folders of 8-bit floats with scales are read as the plain weights that they stand for."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import random_tensors, write_single
from tests.checkpoints.test_parts import require_same_parts

BLOCK: Final = (5, 3)  # divides no size of the model
SIZES: Final = {"hidden_size": 32, "intermediate_size": 48}
Q_NAME: Final = "model.layers.0.self_attn.q_proj"


def config_of(block: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "quant_method": "fp8", "activation_scheme": "static" if block is None else "dynamic", "fmt": "e4m3",
        "weight_block_size": None if block is None else list(block),
    }  # fmt: skip


def scaled(
    block: tuple[int, int] | None, suffix: str, shape: tuple[int, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a folder, and the float32 values that they stand for, by name."""
    stored = {}
    plain = {}
    generator = torch.Generator().manual_seed(1)
    for name, values in random_tensors(torch.bfloat16, **SIZES).items():
        stored[name] = values
        plain[name] = values.float()
        if "_proj" not in name:
            continue
        floats = values.to(torch.float8_e4m3fn)
        sizes = (
            (1, 1) if block is None else tuple(-(-size // unit) for size, unit in zip(values.shape, block, strict=True))
        )
        scales = torch.rand(sizes, generator=generator) + 0.5
        rows, columns = block or values.shape
        factors = scales.repeat_interleave(rows, 0)[: len(values)].repeat_interleave(columns, 1)[:, : values.shape[1]]
        stored[name] = floats
        plain[name] = floats.float() * factors
        stored[name.removesuffix("weight") + suffix] = scales.reshape(shape) if block is None else scales
    return stored, plain


def written(folder: Path, tensors: dict[str, Tensor], block: tuple[int, int] | None) -> HuggingFaceFolder:
    write_single(folder, tensors, quantization_config=config_of(block), **SIZES)
    return HuggingFaceFolder(name="x", folder=folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("block", "suffix", "shape"),
    [(BLOCK, "weight_scale_inv", ()), (None, "weight_scale_inv", ()), (None, "weight_scale", (1,))],
)
def test_a_value_is_the_float_times_its_scale_rounded_once(
    block: tuple[int, int] | None, suffix: str, shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors, plain = scaled(block, suffix, shape)
    if block is None:
        tensors[f"{Q_NAME}.activation_scale"] = torch.tensor(3.0, dtype=torch.bfloat16)
    source = written(tmp_path, tensors, block)
    weights = source.weights(dtype=dtype)
    parts: dict[str, list[Tensor]] = {}
    for name, place in tensor_plan(source.spec()).items():
        parts.setdefault(place.name, []).append(plain[name])
    for name in ("layers.0.qkv", "layers.1.gate_up", "layers.1.mlp_out"):
        weight, _ = weights.linear(name)
        assert torch.equal(weight.values_OI, torch.cat(parts[f"{name}.weight"]).to(dtype))  # type: ignore[union-attr]
    assert torch.equal(weights.vector("final_norm"), plain["model.norm.weight"].to(dtype))
    assert source.stored_dtype() == "bfloat16" or block is not None  # so small a model has more bytes of scales
    assert source.stored_formats()["F8_E4M3"] == sum(t.numel() for t in tensors.values() if t.itemsize == 1)


@pytest.mark.parametrize("block", [BLOCK, None])
def test_parts_are_cut_from_the_scaled_values(block: tuple[int, int] | None, tmp_path: Path) -> None:
    source = written(tmp_path, scaled(block, "weight_scale_inv", ())[0], block)
    for num_ranks in (1, 2, 3):
        require_same_parts(source, num_ranks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_scale_inv": None}, ["lack tensor", f"{Q_NAME}.weight_scale_inv"]),
        ({"weight_scale_inv": torch.ones(2, 2)}, [f"{Q_NAME}.weight_scale_inv", "[2, 2]", "[7, 11]"]),
        ({"weight_scale_inv": torch.full((7, 11), torch.inf)}, [f"{Q_NAME}.weight_scale_inv", "finite"]),
        ({"weight": torch.ones(32, 32)}, [f"{Q_NAME}.weight_scale_inv", "does not have"]),
    ],
)
def test_scales_that_do_not_fit_are_named(changes: dict[str, Tensor | None], words: list[str], tmp_path: Path) -> None:
    tensors = scaled(BLOCK, "weight_scale_inv", ())[0]
    for suffix, value in changes.items():
        tensors.pop(f"{Q_NAME}.{suffix}")
        if value is not None:
            tensors[f"{Q_NAME}.{suffix}"] = value
    with pytest.raises(CheckpointError) as refused:
        written(tmp_path, tensors, BLOCK).weights(dtype=torch.float32)
    assert all(word in str(refused.value) for word in words), refused.value
