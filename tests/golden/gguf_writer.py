"""A Hugging Face folder as a GGUF file in float32: the same weights under llama.cpp's names, in its order of rows.

Source: llama.cpp, convert_hf_to_gguf.py, for the names, the order of rows and the factors.
"""

from pathlib import Path
from typing import Any, Final

import gguf
from safetensors.torch import load_file
from torch import Tensor

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.names import HEAD_NAME, is_ignorable
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.rope import inverse_frequencies

ARCHITECTURES: Final = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}


def write_gguf(folder: Path, path: Path, *, eos_id: int | None = None) -> Path:
    """Write the checkpoint in `folder` to `path`. Its vocabulary consists of placeholders, since prompts are ids."""
    spec = read_model_spec(folder)
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[spec.family]]
    names = gguf.get_tensor_name_map(architecture, spec.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_metadata(writer, spec)
    if eos_id is not None:
        writer.add_eos_token_id(eos_id)
    if spec.rope.kind == "llama3":  # what llama.cpp divides the frequencies by
        plain = RopeSpec(theta=spec.rope.theta)
        factors = inverse_frequencies(plain, spec.head_dim) / inverse_frequencies(spec.rope, spec.head_dim)
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            if not is_ignorable(name) and not (spec.tied_embeddings and name == HEAD_NAME):
                rows = permute(values.float(), heads_to_permute(name, spec)).contiguous()
                writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), rows.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: Any, spec: ModelSpec) -> None:
    add_sizes(writer, spec)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    if spec.rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(spec.rope.kind))
        writer.add_rope_scaling_factor(spec.rope.factor)
        writer.add_rope_scaling_orig_ctx_len(spec.rope.original_max_positions)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_sizes(writer: Any, spec: ModelSpec) -> None:
    """Sizes, and a vocabulary without texts."""
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    counts = [spec.num_kv_heads * (layer in spec.attention_layers) for layer in range(spec.num_layers)]
    is_listed = spec.convolution is not None or spec.mamba is not None
    writer.add_head_count_kv(counts if is_listed else spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.rope.rotated_dims or spec.head_dim)
    writer.add_vocab_size(spec.vocab_size)
    # The only kind of vocabulary that needs no begin and end tokens and no merges, and that llama.cpp can print.
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"<{token_id}>" for token_id in range(spec.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * spec.vocab_size)


def heads_to_permute(name: str, spec: ModelSpec) -> int:
    if ARCHITECTURES[spec.family] != "LLAMA":
        return 0
    return spec.num_heads * (".q_proj." in name) + spec.num_kv_heads * (".k_proj." in name)


def permute(weight: Tensor, num_heads: int) -> Tensor:
    """The rows of a query or key projection as llama.cpp's Llama has them.

    Hugging Face rotates dimension i of a head with dimension i + D/2; llama.cpp rotates neighbours, as Meta does.
    """
    if not num_heads:
        return weight
    halves = weight.view(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
