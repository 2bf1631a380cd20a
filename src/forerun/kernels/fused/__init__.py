"""The fast twins with torch alone: the fewest calls, weights packed once for the machine's own matrix code."""

from forerun.kernels.fused.attention import prepare_mask, tree_attention
from forerun.kernels.fused.gated_mlp import silu_mul
from forerun.kernels.fused.linear import pack_linear
from forerun.kernels.fused.norm import pack_norm
from forerun.kernels.fused.rope import rotate

__all__ = ["pack_linear", "pack_norm", "prepare_mask", "rotate", "silu_mul", "tree_attention"]
