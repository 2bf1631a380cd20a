"""Draft heads in GGUF files.

Sources: llama.cpp's src/models/eagle3.cpp and conversion/llama.py (#18039), src/models/dflash.cpp and
conversion/qwen.py (#22105, #27342): absolute ids in `d2t`, layers numbered by their inputs, and queries and keys of
EAGLE-3 heads in the order in which llama.cpp rotates pairs.
"""

from typing import Final

from forerun.checkpoints.gguf.config import DIVISORS_NAMES, TOKENS_KEY, read_rope
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import IN_LAYERS
from forerun.checkpoints.heads.config import MAX_BLOCK, MAX_TARGET_LAYERS, layer_ids
from forerun.checkpoints.huggingface.config import read_head_counts
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.head_spec import DFlashSpec, EagleSpec, HeadSpec
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

ARCHITECTURES: Final = ("eagle3", "dflash")
OUTER: Final = {
    "fc.weight": "fc.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
    "d2t": "d2t",
    "d2t.weight": "d2t",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
}
AFTER_FC: Final = {"eagle3": "input_norm.weight", "dflash": "hidden_norm.weight"}  # of enc.output_norm
LAYERS: Final = {
    **IN_LAYERS,
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.": "attn_conv_proj.",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.": "ffn_conv_proj.",
}


def read_gguf_head(file: GgufFile) -> tuple[HeadSpec, dict[str, StoredTensor]]:
    """The head's spec, and its tensors, with its map of tokens, by their names in published folders.

    Raises:
        CheckpointError: a key is missing or out of range.
    """
    architecture = str(file.metadata["general.architecture"])
    tensors = {
        _folder_name(name, architecture): tensor for name, tensor in file.tensors.items() if name not in DIVISORS_NAMES
    }
    keys = file.section(f"{architecture}.")
    if architecture == "eagle3":
        return _eagle_spec(file, keys, tensors), tensors
    return _dflash_spec(file, keys, tensors), tensors


def _eagle_spec(file: GgufFile, keys: JsonFile, tensors: dict[str, StoredTensor]) -> EagleSpec:
    body = _read_body(file, keys, tensors)
    ids = _entered_layers(keys, "target_layers" if keys.has("target_layers") else "extract_layers")
    keys.integer("block_count", most=1)
    return EagleSpec(
        body=body,
        target_hidden_size=keys.integer("target_hidden_size", body.hidden_size),
        layer_ids=ids,
        num_taps=len(ids),
        norms_all="input_norm.weight" in tensors,
        norms_residual=keys.flag("norm_before_residual", False),
    )


def _dflash_spec(file: GgufFile, keys: JsonFile, tensors: dict[str, StoredTensor]) -> DFlashSpec:
    body = _read_body(file, keys, tensors)
    ids = _entered_layers(keys, "target_layers")
    is_causal = keys.flag("attention.causal", False)
    has_pairs = "candidate_selector.hidden_projection.weight" in tensors
    has_conv = "layers.0.attention_conv.base_kernel" in tensors
    return DFlashSpec(
        body=body,
        target_hidden_size=max(1, tensors["fc.weight"].shape[-1] // len(ids)) if "fc.weight" in tensors else 1,
        layer_ids=tuple(layer - 1 for layer in ids),
        block_size=keys.integer("block_size", 16, least=2, most=MAX_BLOCK),
        mask_token_id=file.section("tokenizer.ggml.").integer("mask_token_id", least=0),
        windows=_windows(keys, body.num_layers),
        is_causal=(is_causal,) * body.num_layers,
        embedding_scale=keys.number("embedding_scale", 1.0),
        logit_scale=keys.number("logit_scale", 1.0),
        logit_cap=keys.number("final_logit_softcapping", 0.0, least=0.0),
        conv_kernel=keys.integer("conv_kernel_size") if has_conv else 0,
        conv_group=keys.integer("conv_group_size") if has_conv else 0,
        pair_rank=keys.integer("selector_rank") if has_pairs else 0,
        num_pairs=keys.integer("selector_top_k") if has_pairs else 0,
        drafts_from_root=keys.flag("sample_from_anchor", False),
    )


def _read_body(file: GgufFile, keys: JsonFile, tensors: dict[str, StoredTensor]) -> ModelSpec:
    num_heads, num_kv_heads = read_head_counts(keys, "attention.head_count", "attention.head_count_kv")
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise keys.wrong("attention.key_length", "an even number: heads are rotated")
    head = tensors.get("lm_head.weight", tensors.get("d2t"))
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
        vocab_size=keys.integer("vocab_size", num_tokens) if head is None else head.shape[0],
        max_positions=max_positions,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        rope=read_rope(file, keys, max_positions, head_dim),
    )


def _entered_layers(keys: JsonFile, key: str) -> tuple[int, ...]:
    """The target's layers whose inputs the head reads."""
    ids = layer_ids(keys, key, first=1)
    if not ids:
        raise keys.wrong(key, "a list of layers of the target, each 1 or more")
    return ids


def _windows(keys: JsonFile, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer; the pattern tells which layers have one."""
    if not keys.has("attention.sliding_window"):
        return (None,) * num_layers
    window = keys.integer("attention.sliding_window")
    key = "attention.sliding_window_pattern"
    slides = keys.values.get(key)
    if not isinstance(slides, tuple) or len(slides) != num_layers or not all(isinstance(one, bool) for one in slides):
        raise keys.wrong(key, f"a list of {num_layers} flags")
    return tuple(window if is_sliding else None for is_sliding in slides)


def _folder_name(name: str, architecture: str) -> str:
    """The name in published folders of a tensor of a GGUF file."""
    if name == "enc.output_norm.weight":
        return AFTER_FC[architecture]
    if name in OUTER:
        return OUTER[name]
    name = name.replace(".attn_norm_2.", ".hidden_norm.")
    for folder, gguf in LAYERS.items():
        name = name.replace(gguf, folder)
    return name.removeprefix("model.")
