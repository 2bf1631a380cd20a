"""Llama, and models with the same architecture: DeepSeek-coder, DeepSeek-R1-Distill-Llama, SmolLM2."""

from typing import Final

from forerun.checkpoints.families.family import LAYER_KINDS, Family

LLAMA: Final = Family(
    name="llama",
    architecture="llama",
    attention_bias=True,
    mlp_bias=True,
    kv_heads_required=False,
    layer_kinds=LAYER_KINDS[:1],
    gguf_rotates_pairs=True,
)
