"""GLM-4-0414 and Z1: norms around sublayers; the first half of each head is rotated, neighbours in pairs."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FUSED_GATE_UP, Family
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec


def read(_: JsonFile, spec: ModelSpec) -> ModelSpec:
    return replace(spec, norms="around")


GLM4: Final = Family(
    name="glm4",
    architecture="glm4",
    defaults={"attention_bias": True},
    attention_bias=True,
    out_bias=False,
    head_dim=128,
    partial_rotary=0.5,
    is_interleaved=True,
    gguf_rotates_pairs=True,
    norms={
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp_post_norm": "post_mlp_layernorm",
    },
    fused={"mlp.gate_up_proj": FUSED_GATE_UP},
    gguf_fused={"ffn_up": ("ffn_gate", "ffn_up")},
    read=read,
    read_gguf=read,
)
