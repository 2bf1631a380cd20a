"""An EAGLE-3 head in a GGUF file.

Sources: llama.cpp's src/models/eagle3.cpp and conversion/llama.py (#18039): keys of `eagle3.`, absolute ids in `d2t`,
queries and keys in the order in which llama.cpp rotates pairs.
"""

from typing import Final

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import IN_LAYERS
from forerun.checkpoints.heads.config import MAX_TARGET_LAYERS
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.head_spec import EagleSpec
from forerun.core.model_spec import ModelSpec, RopeSpec

ARCHITECTURES: Final = ("eagle3",)
OUTER: Final = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "input_norm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
    "d2t": "d2t",
    "d2t.weight": "d2t",
}
NORMS: Final = {"input_layernorm.": "attn_norm.", "post_attention_layernorm.": "ffn_norm."}


def read_gguf_head(file: GgufFile) -> tuple[EagleSpec, dict[str, StoredTensor], StoredTensor | None]:
    """What the head is, its tensors by the names of published folders, and its map of tokens.

    Raises:
        CheckpointError: a key is missing or out of range.
    """
    tensors = {_folder_name(name): tensor for name, tensor in file.tensors.items()}
    keys = file.section("eagle3.")
    num_heads, hidden_size = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head = tensors.get("lm_head.weight", tensors.get("d2t"))
    target_hidden_size = keys.integer("target_hidden_size", hidden_size)
    ids = keys.values.get("target_layers", keys.values.get("extract_layers"))
    if not isinstance(ids, tuple) or not all(
        isinstance(layer, int) and 1 <= layer < MAX_TARGET_LAYERS for layer in ids
    ):
        raise keys.wrong("target_layers", "a list of layers of the target, each 1 or more")
    body = ModelSpec(
        family="llama",
        num_layers=keys.integer("block_count", most=1),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=keys.integer("attention.key_length", max(1, hidden_size // num_heads)),
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=keys.integer("vocab_size", 1) if head is None else head.shape[0],
        max_positions=keys.integer("context_length", 2048),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        rope=RopeSpec(theta=keys.number("rope.freq_base", 10_000.0)),
    )
    spec = EagleSpec(
        body=body,
        target_hidden_size=target_hidden_size,
        layer_ids=tuple(int(layer) for layer in ids),
        num_taps=len(ids),
        norms_all="input_norm.weight" in tensors,
        norms_residual=keys.flag("norm_before_residual", False),
    )
    return spec, tensors, tensors.get("d2t")


def _folder_name(name: str) -> str:
    """The name in published folders of a tensor of a GGUF file."""
    if name in OUTER:
        return OUTER[name]
    name = name.replace(".attn_norm_2.", ".hidden_norm.")
    for folder, gguf in (IN_LAYERS | NORMS).items():
        name = name.replace(gguf, folder)
    return name.removeprefix("model.")
