"""Phi-3 and Phi-4-mini: fused projections, heads rotated in part, frequencies that depend on the longest text."""

from typing import Final

from forerun.checkpoints.families.family import FUSED_GATE_UP, FUSED_QKV, Family, all_slide

PHI3: Final = Family(
    name="phi3",
    architecture="phi3",
    defaults={"sliding_window": None},
    kv_heads_required=False,
    sliding=all_slide,
    partial_rotary=1.0,
    fused={"self_attn.qkv_proj": FUSED_QKV, "mlp.gate_up_proj": FUSED_GATE_UP},
    gguf_fused={"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")},
)
