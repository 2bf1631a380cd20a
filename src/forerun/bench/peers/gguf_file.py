"""A Hugging Face folder as a GGUF file for llama.cpp: the same weights under other names.

Prompts are ids, so the vocabulary is one of placeholders, and it names no token that ends a text: who reads the ids
knows which do. Source: llama.cpp, convert_hf_to_gguf.py, for the names, the order of rows and the factors.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import torch
from torch import Tensor

from forerun.checkpoints.catalogue import catalogue
from forerun.checkpoints.config import read_model_spec
from forerun.checkpoints.header import StoredTensor
from forerun.checkpoints.names import HEAD_NAME, is_ignorable
from forerun.checkpoints.reader import TORCH_DTYPES, read_into
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec

ARCHITECTURES: Final = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
TYPES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
FILE_TYPES: Final = {"float32": "ALL_F32", "bfloat16": "MOSTLY_BF16", "float16": "MOSTLY_F16"}
# The only kind of vocabulary that may lack beginning, end and merges, and whose pieces llama.cpp can still print.
VOCABULARY: Final = "rwkv"


def write_gguf(folder: Path, path: Path, *, dtype: str) -> None:
    """Write the checkpoint in `folder` to `path`, one tensor in memory at a time.

    Norms and biases are kept in float32, as llama.cpp wants them.

    Raises:
        CheckpointError: the checkpoint cannot be read, or holds a tensor that GGUF has no name for.
    """
    spec = read_model_spec(folder)
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[spec.family]]
    names = gguf.get_tensor_name_map(architecture, spec.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, spec, dtype)
    stored = [tensor for tensor in catalogue(folder).values() if not _is_left_out(tensor, spec)]
    factors = frequency_factors(spec)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", list(factors.shape), factors.numpy().dtype, factors.nbytes)
    for tensor in stored:
        name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise CheckpointError(f"{tensor.path}: GGUF has no name for {tensor.name!r}: leave this peer out")
        _announce(writer, name, tensor, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors.numpy())
    for values in _read(stored, spec, dtype):
        writer.write_tensor_data(values.view(torch.uint8).numpy())
    writer.close()


def frequency_factors(spec: ModelSpec) -> Tensor | None:
    """What llama.cpp divides each rotary frequency by; None where it needs no such table."""
    rope = spec.rope
    if rope.kind != "llama3":
        return None
    frequencies = [rope.theta ** (-2 * idx / spec.head_dim) for idx in range(spec.head_dim // 2)]
    return torch.tensor([_stretch(rope, 2 * math.pi / frequency) for frequency in frequencies], dtype=torch.float32)


def permute(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of a query or key projection in the order of llama.cpp's Llama.

    Hugging Face rotates dimension i of a head with the one half a head on; llama.cpp rotates neighbours, as Meta does.
    """
    halves = weight.view(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _add_metadata(writer: Any, spec: ModelSpec, dtype: str) -> None:
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope.theta)
    if spec.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope.factor)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[dtype]])
    writer.add_tokenizer_model(VOCABULARY)
    writer.add_token_list([f"<{token_id}>" for token_id in range(spec.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * spec.vocab_size)


def _is_left_out(tensor: StoredTensor, spec: ModelSpec) -> bool:
    return is_ignorable(tensor.name) or (spec.tied_embeddings and tensor.name == HEAD_NAME)


def _announce(writer: Any, name: str, tensor: StoredTensor, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[TYPES[_dtype_of(tensor, dtype)]]
    item_bytes = 4 if kind == gguf.GGMLQuantizationType.F32 else 2
    num_bytes = math.prod(tensor.shape) * item_bytes
    writer.add_tensor_info(name, tensor.shape, torch.empty(0).numpy().dtype, num_bytes, raw_dtype=kind)


def _dtype_of(tensor: StoredTensor, dtype: str) -> str:
    return dtype if len(tensor.shape) > 1 else "float32"


def _read(stored: list[StoredTensor], spec: ModelSpec, dtype: str) -> Iterator[Tensor]:
    for tensor in stored:
        values = torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
        for _ in read_into([tensor], [values]):
            pass
        num_heads = _heads_to_permute(tensor.name, spec)
        ordered = permute(values, num_heads) if num_heads else values
        yield ordered.to(getattr(torch, _dtype_of(tensor, dtype))).contiguous()


def _heads_to_permute(name: str, spec: ModelSpec) -> int:
    if ARCHITECTURES[spec.family] != "LLAMA":
        return 0
    return spec.num_heads * (".q_proj." in name) + spec.num_kv_heads * (".k_proj." in name)


def _stretch(rope: RopeSpec, wavelength: float) -> float:
    """How many times longer a wavelength becomes; see RopeSpec."""
    shortest = rope.original_max_positions / rope.high_freq_factor
    longest = rope.original_max_positions / rope.low_freq_factor
    if wavelength < shortest:
        return 1.0
    if wavelength > longest:
        return rope.factor
    share = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    return 1.0 / ((1.0 - share) / rope.factor + share)
