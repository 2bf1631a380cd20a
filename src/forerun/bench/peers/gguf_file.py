"""Convert a Hugging Face folder to a GGUF file for llama.cpp: the same weights under other names.

Prompts are ids, so the vocabulary consists of placeholders and names no end-of-text token; the reader of the ids stops
the text. If the target is a GGUF file, the draft gets its vocabulary, because llama-server compares the two.
Source: llama.cpp, convert_hf_to_gguf.py, for the names, the order of rows and the factors.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import torch
from torch import Tensor

from forerun.checkpoints.gguf.header import BLOCK_SIZES
from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.names import EMBEDDING_NAME, HEAD_NAME, is_ignorable
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES, read_window
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.rope import inverse_frequencies

ARCHITECTURES: Final = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
TYPES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
FILE_TYPES: Final = {"float32": "ALL_F32"}  # for other formats: "MOSTLY_" and the type in TYPES
DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# The only kind of vocabulary that needs no begin and end tokens and no merges, and that llama.cpp can print.
VOCABULARY: Final = "rwkv"


def write_gguf(folder: Path, path: Path, *, weights: str, vocabulary: Path | None = None) -> None:
    """Write the checkpoint in `folder` to `path`, one tensor in memory at a time.

    Norms and biases are kept in float32, as llama.cpp requires.

    Args:
        weights: a dtype, or int8 for llama.cpp's Q8_0, or int4 for its Q4_0. With Q4_0 the head is stored in Q8_0;
            llama.cpp's own tool uses Q6_K, which cannot be written from Python. A tensor whose rows are not a whole
            number of blocks is stored in F16.
        vocabulary: the GGUF file to copy the vocabulary from; None for placeholders.

    Raises:
        CheckpointError: the checkpoint cannot be read, or holds a tensor that GGUF has no name for.
    """
    spec = read_model_spec(folder)
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[spec.family]]
    names = gguf.get_tensor_name_map(architecture, spec.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, spec, weights)
    if vocabulary is None:
        _add_placeholders(writer, spec.vocab_size)
    else:
        _copy_vocabulary(writer, vocabulary)
    stored = [tensor for tensor in catalogue(folder).values() if not _is_left_out(tensor, spec)]
    factors = frequency_factors(spec)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", list(factors.shape), factors.numpy().dtype, factors.nbytes)
    for tensor in stored:
        name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise CheckpointError(f"{tensor.path}: GGUF has no name for {tensor.name!r}: leave this peer out")
        _announce(writer, name, tensor, type_of(tensor, spec, weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors.numpy())
    for tensor, values in zip(stored, _read(stored, spec), strict=True):
        writer.write_tensor_data(encode(values, type_of(tensor, spec, weights)))
    writer.close()


def frequency_factors(spec: ModelSpec) -> Tensor | None:
    """The factors that llama.cpp divides the rotary frequencies by; None if the model needs no such table."""
    if spec.rope.kind != "llama3":
        return None
    plain = RopeSpec(theta=spec.rope.theta)
    return inverse_frequencies(plain, spec.head_dim) / inverse_frequencies(spec.rope, spec.head_dim)


def type_of(tensor: StoredTensor, spec: ModelSpec, weights: str) -> str:
    """The GGML type in which a tensor is stored."""
    if len(tensor.shape) == 1:
        return "F32"
    name = TYPES[weights]
    is_head = tensor.name == (EMBEDDING_NAME if spec.tied_embeddings else HEAD_NAME)
    if name == "Q4_0" and is_head:
        name = "Q8_0"
    return "F16" if tensor.shape[-1] % BLOCK_SIZES[name][0] else name


def encode(values: Tensor, name: str) -> Any:
    """A tensor's bytes in this GGML type, as a numpy array."""
    if name in DTYPES:
        return values.to(DTYPES[name]).contiguous().view(torch.uint8).numpy()
    return gguf.quants.quantize(values.float().numpy(), gguf.GGMLQuantizationType[name])


def permute(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a query or key projection for llama.cpp's Llama.

    Hugging Face rotates dimension i of a head with dimension i + D/2; llama.cpp rotates neighbours, as Meta does.
    """
    halves = weight.view(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _add_metadata(writer: Any, spec: ModelSpec, weights: str) -> None:
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
    if spec.rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(spec.rope.kind))
        writer.add_rope_scaling_factor(spec.rope.factor)
        writer.add_rope_scaling_orig_ctx_len(spec.rope.original_max_positions)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES.get(weights, f"MOSTLY_{TYPES[weights]}")])


def _add_placeholders(writer: Any, vocab_size: int) -> None:
    writer.add_tokenizer_model(VOCABULARY)
    writer.add_token_list([f"<{token_id}>" for token_id in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)


def _copy_vocabulary(writer: Any, file: Path) -> None:
    for key, field in gguf.GGUFReader(file).fields.items():
        if key.startswith("tokenizer.ggml."):
            kind, *of_items = field.types
            writer.add_key_value(key, field.contents(), kind, *of_items)


def _is_left_out(tensor: StoredTensor, spec: ModelSpec) -> bool:
    return is_ignorable(tensor.name) or (spec.tied_embeddings and tensor.name == HEAD_NAME)


def _announce(writer: Any, name: str, tensor: StoredTensor, type_name: str) -> None:
    size, block_bytes = BLOCK_SIZES[type_name]
    num_bytes = math.prod(tensor.shape) // size * block_bytes
    kind = gguf.GGMLQuantizationType[type_name]
    writer.add_tensor_info(name, tensor.shape, torch.empty(0).numpy().dtype, num_bytes, raw_dtype=kind)


def _read(stored: list[StoredTensor], spec: ModelSpec) -> Iterator[Tensor]:
    for tensor in stored:
        values = torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
        for _ in read_window(tensor, values.view(tensor.shape[0], -1), values.dtype):
            pass
        num_heads = _heads_to_permute(tensor.name, spec)
        yield permute(values, num_heads) if num_heads else values


def _heads_to_permute(name: str, spec: ModelSpec) -> int:
    if ARCHITECTURES[spec.family] != "LLAMA":
        return 0
    return spec.num_heads * (".q_proj." in name) + spec.num_kv_heads * (".k_proj." in name)
