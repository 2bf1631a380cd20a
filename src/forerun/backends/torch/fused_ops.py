"""Faster ops in pure torch: fewest calls, with weights packed once for the machine's matrix code.

The contracts are those of `reference_ops`.

Legend: T rows, I input and O output features, Q query and K key/value heads, G = Q / K, S slots, W tree slots, D head
size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.torch.ops import Linear, Norm, TreeMask
from forerun.core.processor import has_fast_bfloat16
from forerun.model.quantise import as_plain
from forerun.model.weights import Weight

MOST_SCORES = 1 << 24  # of a block of rows that attend with sinks
SLOPE = 1.702  # of gpt-oss's gate
CLAMP = 7.0  # of the same gate's inputs


def pack_linear(weight: Weight, bias_O: Tensor | None) -> Linear:
    """Return a function of x [T, I] that gives y [T, O], or y + residual for a residual [T, O].

    The weight is laid out once for oneDNN. Measured on two cores, bf16, one row: 1.4 to 2.1 times torch's own linear,
    and 8 rows cost at most 1.4 times one row. A quantised weight [O, I] is dequantised first, so it is not faster here.
    """
    weight_OI = as_plain(weight)
    if can_prepack(weight_OI):
        return prepacked(weight_OI, bias_O)
    return unpacked(weight_OI, bias_O)


def can_prepack(weight_OI: Tensor) -> bool:
    """True if oneDNN has its own layout for this weight and its matrix code is faster.

    For small float32 products, its call overhead costs more than its layout gains.
    """
    if weight_OI.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight_OI.dtype == torch.bfloat16:
        return has_fast_bfloat16()
    return weight_OI.dtype == torch.float32 and weight_OI.numel() >= 1 << 18


def prepacked(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, 1)
    product = torch.ops.mkldnn._linear_pointwise.default
    product_and_sum = torch.ops.mkldnn._linear_pointwise.binary

    def linear(x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        if residual_TO is None:
            return product(x_TI, packed, bias_O, "none", [], "")  # type: ignore[no-any-return]
        return product_and_sum(x_TI, residual_TO, packed, bias_O, "add")  # type: ignore[no-any-return]

    return linear


def unpacked(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    weight_IO = weight_OI.t()

    def linear(x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        if residual_TO is None:
            return functional.linear(x_TI, weight_OI, bias_O)
        if bias_O is None:
            return torch.addmm(residual_TO, x_TI, weight_IO)
        return residual_TO + functional.linear(x_TI, weight_OI, bias_O)

    return linear


def pack_norm(weight_H: Tensor, eps: float) -> Norm:
    """Return the RMS norm over the last dimension of x [..., H].

    x / sqrt(mean(x^2) + eps) = x / hypot(|x| / sqrt(H), sqrt(eps)): a few small calls that take half the time of
    torch's own rms_norm (256 wide, one row: about 4 against 8 us in float32, 7 against 10 us in bfloat16). Folding
    sqrt(H) into the weight would save one of them, but rounds the weight: errors against float64 then double.
    """
    size = weight_H.shape[-1]
    wide = torch.promote_types(weight_H.dtype, torch.float32)
    wide_weight_H = weight_H.to(wide)
    scale = size**-0.5
    floor = wide_weight_H.new_tensor(eps**0.5)

    def norm_wide(x: Tensor) -> Tensor:
        root_mean_square = torch.hypot(torch.linalg.vector_norm(x, 2, -1, True).mul_(scale), floor)
        return torch.div(x, root_mean_square).mul_(wide_weight_H)

    def norm(x: Tensor) -> Tensor:
        return norm_wide(x) if x.dtype == wide else norm_wide(x.to(wide)).to(x.dtype)

    return norm


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotate each head of x by its row's angles, in three calls."""
    return torch.addcmul(x_TND * cos_T1D, x_TND.roll(x_TND.shape[-1] // 2, -1), sin_T1D)


def prepare_mask(mask: TreeMask, *, group: int, like: Tensor) -> Tensor | None:
    """[T * G, S]: 0 where a row may attend, minus infinity elsewhere, each row repeated for its group of heads.

    None if a single row attends to everything, as in plain decoding.
    """
    ancestry_TW = mask.ancestry_TW
    prefix_len = mask.prefix_len
    window = mask.window
    if window is not None and window >= mask.num_slots:
        window = None  # the window is larger than the text
    if ancestry_TW is None:
        if mask.num_rows == 1 and window is None:
            return None
        ancestry_TW = torch.ones(mask.num_rows, mask.num_rows, dtype=torch.bool, device=like.device).tril_()
        prefix_len = mask.num_slots - mask.num_rows
    bias_TS = like.new_zeros(mask.num_rows, mask.num_slots)
    bias_TS[:, prefix_len:].masked_fill_(~ancestry_TW, float("-inf"))
    if window is not None:
        num_from_slot_TS = (bias_TS == 0).flip(-1).cumsum(-1).flip(-1)  # slots seen from this one on
        bias_TS.masked_fill_(num_from_slot_TS > window, float("-inf"))
    if group == 1:
        return bias_TS
    return bias_TS[:, None].expand(-1, group, -1).reshape(-1, mask.num_slots)


def tree_attention(
    q_TQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mask: Tensor | None, sinks_Q: Tensor | None = None
) -> Tensor:
    """Attend in one call for all rows; see the reference for arguments and result.

    Query heads that share a key head are folded into rows, so that keys are read once and never repeated in memory.
    """
    num_rows, num_heads, head_dim = q_TQD.shape
    num_kv_heads = keys_SKD.shape[1]
    keys_1KSD = keys_SKD.transpose(0, 1)[None]
    values_1KSD = values_SKD.transpose(0, 1)[None]
    if sinks_Q is not None:
        return attend_with_sinks(q_TQD, keys_1KSD, values_1KSD, mask, sinks_Q)
    if num_rows == 1:
        q_1KGD = q_TQD.reshape(1, num_kv_heads, -1, head_dim)
        if is_slow_alone(q_1KGD):
            q_1KGD = q_1KGD.repeat(1, 1, 2, 1)
        mixed = functional.scaled_dot_product_attention(q_1KGD, keys_1KSD, values_1KSD, mask)
        return mixed[:, :, : num_heads // num_kv_heads].reshape(1, num_heads * head_dim)
    q_TKGD = q_TQD.reshape(num_rows, num_kv_heads, -1, head_dim)
    q_1KRD = q_TKGD.transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    mixed = functional.scaled_dot_product_attention(q_1KRD, keys_1KSD, values_1KSD, mask)
    return mixed.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, num_heads * head_dim)


def attend_with_sinks(
    q_TQD: Tensor, keys_1KSD: Tensor, values_1KSD: Tensor, mask: Tensor | None, sinks_Q: Tensor
) -> Tensor:
    """As `tree_attention`, a block of rows at a time, because torch keeps their scores."""
    num_heads, head_dim = q_TQD.shape[1:]
    num_kv_heads, num_slots = keys_1KSD.shape[1:3]
    wide = torch.promote_types(q_TQD.dtype, torch.float32)
    group = num_heads // num_kv_heads
    at_once = max(1, MOST_SCORES // (num_heads * num_slots))
    outputs = []
    for first in range(0, len(q_TQD), at_once):
        q_TKGD = q_TQD[first : first + at_once].reshape(-1, num_kv_heads, group, head_dim)
        num_rows = len(q_TKGD)
        q_1KRD = q_TKGD.transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
        sinks = sinks_Q.to(wide).view(1, num_kv_heads, 1, group).expand(1, num_kv_heads, num_rows, group)
        scores = torch.matmul(q_1KRD, keys_1KSD.transpose(2, 3)).to(wide).mul_(head_dim**-0.5)
        if mask is not None:
            scores += mask[first * group : (first + num_rows) * group]
        totals = torch.logaddexp(scores.logsumexp(-1, True), sinks.reshape(1, num_kv_heads, -1, 1))
        mixed = torch.matmul(scores.sub_(totals).exp_().to(values_1KSD.dtype), values_1KSD)
        outputs.append(mixed.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def is_slow_alone(q_1KGD: Tensor) -> bool:
    """True if torch computes two equal rows faster than one, because it has no fast half-precision vector product."""
    return q_1KGD.shape[2] == 1 and q_1KGD.device.type == "cpu" and q_1KGD.itemsize == 2


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up without a third buffer: [T, 2I] to [T, I]."""
    width = gate_up.shape[-1] // 2
    return functional.silu(gate_up[:, :width]).mul_(gate_up[:, width:])


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up with the tanh approximation of GELU: [T, 2I] to [T, I]."""
    width = gate_up.shape[-1] // 2
    return functional.gelu(gate_up[:, :width], approximate="tanh").mul_(gate_up[:, width:])


def clamped_mul(gate_up: Tensor) -> Tensor:
    """gate sigmoid(1.702 gate) (up + 1), with the gate at most 7 and up within [-7, 7]: [T, 2I] to [T, I]."""
    width = gate_up.shape[-1] // 2
    gate = gate_up[:, :width].clamp(max=CLAMP)
    up = gate_up[:, width:].clamp(-CLAMP, CLAMP)
    return gate.mul_(torch.sigmoid(SLOPE * gate)).mul_(up.add_(1.0))
