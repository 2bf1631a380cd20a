"""Faster ops in pure torch: fewest calls, with weights packed once for the machine's matrix code."""

from forerun.backends.torch.fused.attention import prepare_mask, tree_attention
from forerun.backends.torch.fused.gated_mlp import silu_mul
from forerun.backends.torch.fused.linear import pack_linear
from forerun.backends.torch.fused.norm import pack_norm
from forerun.backends.torch.fused.rope import rotate

__all__ = ["pack_linear", "pack_norm", "prepare_mask", "rotate", "silu_mul", "tree_attention"]
