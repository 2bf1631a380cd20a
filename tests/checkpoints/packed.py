"""Weights packed in 4 bits as three formats publish them: written here and read back, both by the formats' own words.

Nothing of the package is used, so that the two must stay strangers. A code's place is worked out from that of its
output and input, one by one. Legend: O output features, I input features, G groups, W words.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

METHODS: Final = ("awq", "gptq", "gptq_v2", "gptq_sym", "compressed", "compressed_sym")
AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ: nibble n of a word holds output AWQ_ORDER[n] of its eight


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A weight as (code - zero) * scale.

    Args:
        codes_OI, zeros_OG: from 0 to 15.
        group_size: the last group may be shorter.
    """

    codes_OI: NDArray[np.uint32]
    zeros_OG: NDArray[np.uint32]
    scales_OG: Tensor
    group_size: int

    @classmethod
    def random(cls, num_out: int, num_in: int, group_size: int, method: str, dtype: torch.dtype, seed: int) -> "Codes":
        """Of about the size 1 / 4; zeros from 1 on in GPTQ's first version, which cannot write 0."""
        rng = np.random.default_rng(seed)
        num_groups = -(-num_in // group_size)
        zeros = rng.integers(1 if method == "gptq" else 0, 16, (num_out, num_groups), dtype=np.uint32)
        if method.endswith("_sym"):
            zeros = np.full_like(zeros, 8)
        return cls(
            codes_OI=rng.integers(0, 16, (num_out, num_in), dtype=np.uint32),
            zeros_OG=zeros,
            scales_OG=torch.from_numpy(rng.uniform(0.01, 0.06, (num_out, num_groups))).to(dtype),
            group_size=group_size,
        )


def in_words(codes: NDArray[np.uint32], order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Codes [rows, N] eight to a word along the last axis: int32 [rows, N / 8 rounded up]."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    words = np.zeros((len(codes), padded.shape[1] // 8), dtype=np.uint32)
    for nibble, member in enumerate(order):
        words |= padded[:, member::8] << np.uint32(4 * nibble)
    return torch.from_numpy(words.view(np.int32).copy())


def tensors_of(method: str, weight: Codes) -> dict[str, Tensor]:
    """What a layer's weight is stored as, by suffix."""
    codes = weight.codes_OI
    zeros = weight.zeros_OG
    scales = weight.scales_OG
    num_out, num_in = codes.shape
    if method == "awq":
        return {
            "qweight": in_words(codes.T, AWQ_ORDER),
            "qzeros": in_words(zeros.T, AWQ_ORDER),
            "scales": scales.T.contiguous(),
        }
    if method.startswith("gptq"):
        stored = zeros if method == "gptq_v2" else zeros - 1
        return {
            "qweight": in_words(codes).T.contiguous(),
            "qzeros": in_words(stored.T),
            "scales": scales.T.contiguous(),
            "g_idx": (torch.arange(num_in) // weight.group_size).int(),
        }
    shape = torch.tensor([num_out, num_in])
    tensors = {"weight_packed": in_words(codes), "weight_scale": scales, "weight_shape": shape}
    return tensors if method == "compressed_sym" else tensors | {"weight_zero_point": in_words(zeros.T).T.contiguous()}


def dequantised(method: str, tensors: Mapping[str, Tensor], group_size: int) -> Tensor:
    """The weight [O, I] in float64, looked up one output and one input at a time."""
    word = {name: tensor.numpy().view(np.uint32) for name, tensor in tensors.items() if tensor.dtype == torch.int32}
    if method.startswith("compressed"):
        num_out, num_in = tensors["weight_shape"].tolist()
        scales_OG = tensors["weight_scale"].double().numpy()
    else:
        num_out = tensors["scales"].shape[1]
        num_in = tensors["qweight"].shape[0] * (1 if method == "awq" else 8)
        scales_OG = tensors["scales"].T.double().numpy()
    o, i = np.indices((num_out, num_in))
    g = i // group_size
    if method == "awq":
        place = np.array([AWQ_ORDER.index(member) for member in range(8)])[o % 8]
        code = word["qweight"][i, o // 8] >> (4 * place)
        zero = word["qzeros"][g, o // 8] >> (4 * place)
    elif method.startswith("gptq"):
        code = word["qweight"][i // 8, o] >> (4 * (i % 8))
        zero = word["qzeros"][g, o // 8] >> (4 * (o % 8))
        zero = zero if method == "gptq_v2" else (zero & 15) + 1
    else:
        code = word["weight_packed"][o, i // 8] >> (4 * (i % 8))
        has_zeros = method == "compressed"
        zero = word["weight_zero_point"][o // 8, g] >> (4 * (o % 8)) if has_zeros else np.full_like(code, 8)
    values = ((code & 15).astype(np.float64) - (zero & 15)) * scales_OG[o, g]
    return torch.from_numpy(values)


def quantization_config(method: str, group_size: int) -> dict[str, Any]:
    """As the format's own writer puts it into config.json; a group size of -1 is one group for an output."""
    if method == "awq":
        return {
            "quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None,
        }  # fmt: skip
    if method.startswith("gptq"):
        return {
            "quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": False, "damp_percent": 0.1,
            "sym": method == "gptq_sym", "true_sequential": True, "static_groups": False, "model_name_or_path": None,
            "checkpoint_format": "gptq_v2" if method == "gptq_v2" else "gptq",
        }  # fmt: skip
    weights = {
        "num_bits": 4, "type": "int", "symmetric": method == "compressed_sym", "dynamic": False, "actorder": None,
        "strategy": "channel" if group_size == -1 else "group", "group_size": None if group_size == -1 else group_size,
        "block_structure": None, "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
        "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip


def write_packed(
    folder: Path, plain: Mapping[str, Tensor], method: str, *, group_size: int, dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """Write the packed twin of a checkpoint whose config.json is in the folder; what its plain weights are, in float64.

    Args:
        plain: tensors by their Hugging Face names; the layers' weights only say what shapes there are.
        group_size: -1 for one group for an output.
        dtype: of scales and of all that stays plain.
    """
    stored = {}
    expected = {}
    for number, (name, tensor) in enumerate(plain.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = tensor.to(dtype)
            expected[name] = stored[name].double()
            continue
        num_out, num_in = tensor.shape
        size = num_in if group_size == -1 else group_size
        tensors = tensors_of(method, Codes.random(num_out, num_in, size, method, dtype, seed=number))
        stored |= {f"{name.removesuffix('.weight')}.{suffix}": part for suffix, part in tensors.items()}
        expected[name] = dequantised(method, tensors, size)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization_config(method, group_size)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    return expected
