"""Where every tensor of a GGUF file goes: ggml's names for the tensors of the Hugging Face layout.

Source: llama.cpp (gguf-py/gguf/tensor_mapping.py, convert_hf_to_gguf.py).

Legend: R rows of a matrix, B bytes of a row.
"""

from typing import Final

from torch import Tensor

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
LEFTOVER: Final = ".attn_rot_embd.weight"  # rotary frequencies of early converters, here computed


def gguf_plan(spec: ModelSpec) -> dict[str, TensorPlace]:
    """Every tensor that the file must hold, by its name there, and where it goes."""
    return {gguf_name(name): place for name, place in tensor_plan(spec).items()}


def gguf_name(name: str) -> str:
    """What ggml calls a tensor of the Hugging Face layout."""
    for part, replacement in OUTER.items() if name in OUTER else IN_LAYERS.items():
        name = name.replace(part, replacement)
    return name


def is_ignorable(name: str) -> bool:
    """Whether a tensor outside the plan is redundant, or read with the metadata."""
    return name == DIVISORS_NAME or name.endswith(LEFTOVER)


def num_interleaved_heads(name: str, spec: ModelSpec) -> int:
    """Heads of a tensor whose rows are in llama.cpp's own order, 0 where they are in that of training.

    It rotates dimension i of a head with its neighbour in architecture llama alone; in all others, as everywhere here,
    with the one half a head on.
    """
    if spec.family != "llama":
        return 0
    return spec.num_heads * (".attn_q." in name) + spec.num_kv_heads * (".attn_k." in name)


def in_halves(rows_RB: Tensor, num_heads: int) -> Tensor:
    """Rows of heads whose neighbours rotate together, put where halves do. Whole rows move, packed or not."""
    pairs = rows_RB.view(num_heads, -1, 2, rows_RB.shape[1])
    return pairs.transpose(1, 2).reshape(rows_RB.shape)
