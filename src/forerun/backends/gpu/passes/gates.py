"""The activation of an MLP's gate times its up, as in `backends.torch.reference_ops`.

Every activation is the gate times a logistic function of it: silu(g) = g s(g), and the tanh approximation of GELU
(arXiv 1606.08415) is g s(2 sqrt(2 / pi) (g + 0.044715 g^3)), as (1 + tanh z) / 2 = s(2 z).
"""

import triton
import triton.language as tl

GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
GELU_CUBIC = tl.constexpr(0.044715)
CLAMPED_SLOPE = tl.constexpr(1.702)
CLAMP = tl.constexpr(7.0)


@triton.jit
def gated_pairs(gates, ups, GATE: tl.constexpr):
    """act(gate) * up of float32 tensors of one shape; GATE is a `Gate`."""
    if GATE == "clamped":
        gates = smaller(gates, CLAMP)
        ups = -smaller(-smaller(ups, CLAMP), CLAMP) + 1.0
        slopes = gates * CLAMPED_SLOPE
    elif GATE == "gelu_tanh":
        slopes = GELU_SLOPE * (gates + GELU_CUBIC * gates * gates * gates)
    else:
        slopes = gates
    decays = tl.exp(-tl.abs(slopes))  # The argument is never positive, so this cannot overflow.
    shares = tl.where(slopes >= 0.0, 1.0, decays) / (1.0 + decays)
    return gates * shares * ups


@triton.jit
def smaller(numbers, most):
    """min(number, most); NaN stays."""
    return tl.where(numbers > most, most, numbers)
