"""The specification of every op, in plain torch.

Each row is computed alone or in shapes that do not depend on the number of other rows, so its bits are the same in a
one-row step, in a verification and in a prefill. So these ops are the `exact` mode, and the simple, slow reference that
every faster kernel is compared with.
"""

from forerun.backends.torch.reference.attention import prepare_mask, tree_attention
from forerun.backends.torch.reference.gated_mlp import silu_mul
from forerun.backends.torch.reference.linear import pack_linear
from forerun.backends.torch.reference.norm import pack_norm
from forerun.backends.torch.reference.rope import rotate

__all__ = ["pack_linear", "pack_norm", "prepare_mask", "rotate", "silu_mul", "tree_attention"]
