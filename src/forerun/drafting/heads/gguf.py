"""Draft heads in GGUF files.

Sources: llama.cpp's src/models/eagle3.cpp and conversion/llama.py (#18039), src/models/dflash.cpp and
conversion/qwen.py (#22105, #27342): absolute ids in `d2t`, layers numbered by their inputs, and queries and keys of
EAGLE-3 heads in the order in which llama.cpp rotates pairs.
"""

from collections.abc import Mapping
from typing import Final

from forerun.checkpoints.gguf.config import TOKENS_KEY, read_rope
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import IN_LAYERS
from forerun.checkpoints.huggingface.config import read_head_counts
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.config import MAX_TARGET_LAYERS, layer_ids

OUTER: Final = {
    "fc.weight": "fc.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
    "d2t": "d2t",
    "d2t.weight": "d2t",
}
LAYERS: Final = {
    **IN_LAYERS,
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.": "attn_conv_proj.",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.": "ffn_conv_proj.",
}


def read_gguf_body(file: GgufFile, keys: JsonFile, tensors: Mapping[str, StoredTensor]) -> ModelSpec:
    """The sizes of the head's layers."""
    num_heads, num_kv_heads = read_head_counts(keys, "attention.head_count", "attention.head_count_kv")
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise keys.wrong("attention.key_length", "an even number: heads are rotated")
    rows = tensors.get("lm_head.weight", tensors.get("d2t"))
    max_positions = keys.integer("context_length", 2048)
    tokens = file.metadata.get(TOKENS_KEY)
    num_tokens = len(tokens) if isinstance(tokens, tuple) else 1  # the target's rows are known only with the target
    return ModelSpec(
        family="llama",
        num_layers=keys.integer("block_count", most=MAX_TARGET_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=keys.integer("vocab_size", num_tokens) if rows is None else rows.shape[0],
        max_positions=max_positions,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        rope=read_rope(file, keys, max_positions, head_dim),
    )


def entered_layers(keys: JsonFile, key: str) -> tuple[int, ...]:
    """The target's layers whose inputs the head reads."""
    ids = layer_ids(keys, key, first=1)
    if not ids:
        raise keys.wrong(key, "a list of layers of the target, each 1 or more")
    return ids


def folder_name(name: str, own: Mapping[str, str]) -> str:
    """The name in published folders of a tensor of a GGUF file.

    Args:
        own: names that only heads of this kind have.
    """
    outer = {**OUTER, **own}
    if name in outer:
        return outer[name]
    name = name.replace(".attn_norm_2.", ".hidden_norm.")
    for folder, gguf in LAYERS.items():
        name = name.replace(gguf, folder)
    return name.removeprefix("model.")
