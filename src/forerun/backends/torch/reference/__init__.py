"""The specification of every op, in plain torch.

Each row is computed alone or in shapes that do not depend on how many other rows there are, so its bits are the same
in a one-row step, in a verification and in a prefill. That makes these ops the `exact` mode, and the slow obvious twin
that every faster kernel is compared with.
"""

from forerun.backends.torch.reference.attention import prepare_mask, tree_attention
from forerun.backends.torch.reference.gated_mlp import silu_mul
from forerun.backends.torch.reference.linear import pack_linear
from forerun.backends.torch.reference.norm import pack_norm
from forerun.backends.torch.reference.rope import rotate

__all__ = ["pack_linear", "pack_norm", "prepare_mask", "rotate", "silu_mul", "tree_attention"]
