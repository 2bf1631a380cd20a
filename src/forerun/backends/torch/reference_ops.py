"""The specification of every op, in plain torch.

Each row is computed alone or in shapes that do not depend on the number of other rows, so its bits are the same in a
one-row step, in a verification and in a prefill. So these ops are the `exact` mode, and the simple, slow reference that
every faster kernel is compared with.

Legend: T rows, I input and O output features, N heads, Q query and K key/value heads, G = Q / K, S slots, W tree slots,
D head size.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.torch.ops import Linear, Norm, TreeMask
from forerun.model.quantise import as_plain
from forerun.model.weights import Weight

# The algorithm of a matrix product depends on its shape, so a row's bits depend on the number of rows. With a fixed
# number and the same alignment for every row, neither the row's index nor the other rows' values change its bits
# (measured in fp32, bf16 and fp64; with rows of odd length, half of all fp64 shapes depended on the index). Four rows
# rather than eight, since on CPUs with only AVX2 MKL takes six rows at once and computes the last two with other code.
ROWS_PER_BLOCK = 4
FEATURES_PER_STEP = 16
SLOPE = 1.702  # of gpt-oss's gate
CLAMP = 7.0  # of the same gate's inputs


def pack_linear(weight: Weight, bias_O: Tensor | None) -> Linear:
    """Return a function of x [T, I] that gives y [T, O], or y + residual for a residual [T, O]. Weight: [O, I]."""
    plain_OI = as_plain(weight)
    weight_OI = functional.pad(plain_OI, (0, -plain_OI.shape[1] % FEATURES_PER_STEP))

    def linear(x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        y_TO = in_blocks(x_TI, lambda block: functional.linear(block, weight_OI, bias_O))
        return y_TO if residual_TO is None else residual_TO + y_TO

    return linear


def in_blocks(x_TI: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `compute` to blocks of ROWS_PER_BLOCK rows; pad the last block and the end of each row with zeros."""
    outputs = []
    for start in range(0, x_TI.shape[0], ROWS_PER_BLOCK):
        block = x_TI[start : start + ROWS_PER_BLOCK]
        missing_rows = ROWS_PER_BLOCK - block.shape[0]
        missing_features = -block.shape[1] % FEATURES_PER_STEP
        padded = functional.pad(block, (0, missing_features, 0, missing_rows)).clone()
        outputs.append(compute(padded)[: block.shape[0]])
    return torch.cat(outputs)


def pack_norm(weight_H: Tensor, eps: float) -> Norm:
    """Return the RMS norm over the last dimension of x [..., H]: x / sqrt(mean(x^2) + eps) * weight.

    The mean is in float32 or better, and so is the product with a weight of such a dtype. Source: arXiv 1910.07467.
    """

    def norm(x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (scaled.to(weight_H.dtype) * weight_H).to(x.dtype)

    return norm


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotate each head of x by its row's angles. Source: arXiv 2104.09864.

    The tables hold cos and sin of each row's position; sin carries a minus sign in its first half, so that swapping the
    halves of x and multiplying is the rotation.
    """
    half = x_TND.shape[-1] // 2
    swapped_TND = x_TND.roll(half, -1)
    return x_TND * cos_T1D + swapped_TND * sin_T1D


def prepare_mask(mask: TreeMask, *, group: int, like: Tensor) -> list[Tensor]:
    """For each row the slots it attends to, in text order: the prefix, then the ancestors from the root down."""
    return [visible_slots(mask, row, device=like.device) for row in range(mask.num_rows)]


def visible_slots(mask: TreeMask, row: int, *, device: torch.device) -> Tensor:
    if mask.ancestry_TW is None:
        slots = torch.arange(mask.num_slots - mask.num_rows + row + 1, device=device)
    else:
        own = mask.prefix_len + mask.ancestry_TW[row].nonzero()[:, 0]
        slots = torch.cat((torch.arange(mask.prefix_len, device=device), own))
    return slots if mask.window is None else slots[-mask.window :]


def tree_attention(
    q_TQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mask: list[Tensor], sinks_Q: Tensor | None = None
) -> Tensor:
    """Attend row by row over gathered keys: every row only to the whole prefix and its ancestors in the tree.

    A row's keys have the same order and number as in plain decoding, even if siblings lie between them in the cache, so
    its result has the same bits.

    Args:
        q_TQD: queries of T new rows.
        keys_SKD, values_SKD: all S filled slots.
        mask: the result of `prepare_mask`.
        sinks_Q: a score for each head that counts in its softmax, and whose share goes to no value.

    Returns:
        [T, Q * D]
    """
    num_kv_heads = keys_SKD.shape[1]
    outputs = []
    for q_QD, slots in zip(q_TQD, mask, strict=True):
        keys_1KSD = keys_SKD.index_select(0, slots).transpose(0, 1)[None]
        values_1KSD = values_SKD.index_select(0, slots).transpose(0, 1)[None]
        q_1KGD = q_QD.clone().reshape(1, num_kv_heads, -1, q_QD.shape[-1])  # same alignment for every row
        if sinks_Q is None:
            mixed = functional.scaled_dot_product_attention(q_1KGD, keys_1KSD, values_1KSD)
        else:
            mixed = with_sinks(q_1KGD, keys_1KSD, values_1KSD, sinks_Q.view(1, num_kv_heads, -1, 1))
        outputs.append(mixed.reshape(1, -1))
    return torch.cat(outputs)


def with_sinks(q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor) -> Tensor:
    """Attention of queries [..., R, D] over slots [..., S, D] with a sink for each query [..., R, 1].

    The softmax is in float32 or better. Source: arXiv 2309.17453; transformers, modeling_gpt_oss.py.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q, keys.transpose(-1, -2)).to(wide) * q.shape[-1] ** -0.5
    shares = torch.cat((scores, sinks.to(wide)), -1).softmax(-1)[..., :-1]
    return torch.matmul(shares.to(values.dtype), values)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, gate and up side by side: [T, 2I] to [T, I]."""
    return row_by_row(gate_up, lambda gate, up: functional.silu(gate) * up)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up with the tanh approximation of GELU (arXiv 1606.08415), otherwise as `silu_mul`."""
    return row_by_row(gate_up, lambda gate, up: functional.gelu(gate, approximate="tanh") * up)


def clamped_mul(gate_up: Tensor) -> Tensor:
    """gate sigmoid(1.702 gate) (up + 1), with the gate at most 7 and up within [-7, 7], otherwise as `silu_mul`."""

    def clamped(gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=CLAMP)
        up = up.clamp(-CLAMP, CLAMP)
        return gate * torch.sigmoid(SLOPE * gate) * (up + 1)

    return row_by_row(gate_up, clamped)


def row_by_row(gate_up: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply `compute` to gate and up of each row alone: with many rows, torch may split a row between threads, and it
    rounds the end of each part with different code."""
    return torch.stack([compute(*row.chunk(2)) for row in gate_up])
