"""Small GGUF models by the format's own package: random blocks of any types under ggml's names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch

from forerun.model.gguf_block_types import BLOCKS
from tests.blocks import random_blocks

HIDDEN = 256
INNER = 512
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
VOCABULARY = 40
SHAPES: Final = {
    "attn_norm.weight": (HIDDEN,),
    "ffn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate.weight": (INNER, HIDDEN),
    "ffn_up.weight": (INNER, HIDDEN),
    "ffn_down.weight": (HIDDEN, INNER),
}
OF_ARCHITECTURE: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "llama": {},
    "qwen2": {
        "attn_q.bias": (HEADS * HEAD_DIM,),
        "attn_k.bias": (KV_HEADS * HEAD_DIM,),
        "attn_v.bias": (KV_HEADS * HEAD_DIM,),
    },
    "qwen3": {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)},
}
TOKENS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"t{idx}" for idx in range(VOCABULARY - 3))]


def tensor_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of one layer whose head is the embedding."""
    layer = SHAPES | OF_ARCHITECTURE[architecture]
    return {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        **{f"blk.0.{name}": shape for name, shape in layer.items()},
    }


def metadata_of(architecture: str) -> dict[str, Any]:
    return {
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INNER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.eos_token_id": 0,
    }


def write_model(
    path: Path,
    *,
    architecture: str = "llama",
    types: Mapping[str, str] | None = None,
    default_type: str = "F32",
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    **metadata: Any,
) -> Path:
    """Write a model of one layer.

    Args:
        types: of tensors by a part of their name; vectors are F32 unless named in full.
        default_type: of the other matrices.
        shapes: of tensors to add, to change, or to leave out where None.
        metadata: keys to add, to change, or to leave out where None; dots are written as __, and ARCH for the name.
    """
    writer = gguf.GGUFWriter(path, architecture)
    changes = {key.replace("__", ".").replace("ARCH", architecture): value for key, value in metadata.items()}
    for key, value in (metadata_of(architecture) | {"tokenizer.ggml.tokens": TOKENS} | changes).items():
        if value is not None:
            add(writer, key, value)
    for seed, (name, shape) in enumerate((tensor_shapes(architecture) | dict(shapes or {})).items()):
        if shape is not None:
            named = next((kind for part, kind in (types or {}).items() if part in name), default_type)
            add_random(writer, name, shape, named if len(shape) == 2 or name in (types or {}) else "F32", seed=seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: Any, key: str, value: Any) -> None:
    """A value as llama.cpp's converter types it."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def add_random(writer: Any, name: str, shape: tuple[int, ...], type_name: str, *, seed: int) -> None:
    """Random values of a type: blocks of every code, or numbers around 0."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in BLOCKS:
        num_blocks = shape[-1] // BLOCKS[type_name].num_elements
        rows = random_blocks(type_name, seed=seed, num_out=int(np.prod(shape[:-1])), blocks_in_row=num_blocks)
        writer.add_tensor(name, rows.numpy().reshape(*shape[:-1], -1), raw_dtype=kind)
        return
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if name.endswith("norm.weight") or name == "rope_freqs.weight":
        values = values.abs() + 0.5
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32}[type_name]
    raw = values.to(dtype)
    if dtype is torch.bfloat16:
        writer.add_tensor(name, raw.view(torch.uint8).numpy(), raw_dtype=kind)
    else:
        writer.add_tensor(name, raw.numpy())


def values_of(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor as the package dequantises it, float32, rows in the file's order."""
    return {
        tensor.name: torch.from_numpy(
            np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        ).reshape([int(size) for size in tensor.shape[::-1]])
        for tensor in gguf.GGUFReader(path).tensors
    }
