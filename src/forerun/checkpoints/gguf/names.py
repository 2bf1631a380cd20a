"""The place of every tensor of a GGUF file: ggml's names for the tensors of the Hugging Face layout.

Source: llama.cpp (gguf-py/gguf/tensor_mapping.py, convert_hf_to_gguf.py).
"""

from typing import Final

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.gguf.config import DIVISORS_NAME, EMBEDDING_NAME, HEAD_NAME
from forerun.checkpoints.huggingface import names as huggingface_names
from forerun.checkpoints.huggingface.names import TensorPlace, tensor_plan
from forerun.core.model_spec import ModelSpec

OUTER: Final = {
    huggingface_names.EMBEDDING_NAME: EMBEDDING_NAME,
    "model.norm.weight": "output_norm.weight",
    huggingface_names.HEAD_NAME: HEAD_NAME,
}
IN_LAYERS: Final = {
    "model.layers.": "blk.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
}
LEFTOVER: Final = ".attn_rot_embd.weight"  # rotary frequencies from early converters; we compute them


def gguf_plan(spec: ModelSpec) -> dict[str, TensorPlace]:
    """Every tensor that the file must hold, by its name in the file, and its place."""
    return {gguf_name(name): place for name, place in tensor_plan(spec).items()}


def gguf_name(name: str) -> str:
    """ggml's name for a tensor of the Hugging Face layout."""
    for part, replacement in OUTER.items() if name in OUTER else IN_LAYERS.items():
        name = name.replace(part, replacement)
    return name


def is_ignorable(name: str) -> bool:
    """Whether a tensor outside the plan is redundant, or read with the metadata."""
    return name == DIVISORS_NAME or name.endswith(LEFTOVER)


def rotated_in_pairs(name: str, spec: ModelSpec) -> int:
    """The head size of a tensor whose rows are in llama.cpp's own order; 0 if they are in the order of training."""
    is_rotated = BY_NAME[spec.family].gguf_rotates_pairs and (".attn_q." in name or ".attn_k." in name)
    return spec.head_dim if is_rotated else 0
