"""The kernels of linears, rows, attention and sampling one by one, on one thread: for tests and for measuring.

A model's pass calls them inside one C function, see `forerun.backends.cpu.executor`. All tensors lie on the CPU.

Legend: T rows, Q query heads, K key/value heads, S slots, W tree slots, P positions, H size, D head size, V vocabulary.
"""

from ctypes import CDLL, POINTER, Structure, byref, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import EPILOGUES, Heads, NativeLinear
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.lowering import CACHE_FORMATS

MOST_ROWS: Final = 16  # of one call of the attention kernel


class LayerCache(Structure):
    """One layer's keys and values."""

    _fields_ = (("keys", c_void_p), ("values", c_void_p), ("format", c_int32), ("slot_stride", c_int64))


class Visibility(Structure):
    """Who sees whom."""

    _fields_ = (
        ("num_rows", c_int32),
        ("first_slot", c_int32),
        ("prefix_len", c_int32),
        ("num_tree", c_int32),
        ("ancestry", c_void_p),
        ("window", c_int32),
        ("known", c_void_p),
    )


class RowNoise(Structure):
    """The key of one row's noise, see `forerun.sampling.noise`."""

    _fields_ = (("low", c_int32), ("high", c_int32), ("is_noisy", c_int32))


class TopTwo(Structure):
    """A row's best token, its total and the next best one's."""

    _fields_ = (("token", c_int32), ("best", c_float), ("second", c_float))


class Product(PackedLinear):
    """A packed weight and the products with it, outside a program."""

    def __call__(self, x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """x W^T + b (+ residual), float32 [T, I] to [T, O], on torch's number of threads."""
        return self._run(x_TI, self.descriptor.num_out, residual_TO, "store" if residual_TO is None else "add")

    def silu_mul(self, x_TI: Tensor) -> Tensor:
        """silu(gate) * up of the products with a paired weight, float32 [T, I] to [T, O / 2]."""
        assert self.descriptor.paired, "gate and up"
        return self._run(x_TI, self.descriptor.paired, None, "silu_mul")

    def _run(self, x_TI: Tensor, num_out: int, residual: Tensor | None, epilogue: str) -> Tensor:
        y = x_TI.new_empty(len(x_TI), num_out)
        linear_functions().forerun_linear(
            byref(self.descriptor), floats(x_TI), len(x_TI), floats(y), None if residual is None else floats(residual),
            EPILOGUES[epilogue], torch.get_num_threads(),
        )  # fmt: skip
        return y


@cache
def linear_functions() -> CDLL:
    """The library, with what its functions of single linears take."""
    found = library()
    found.forerun_linear.argtypes = (POINTER(NativeLinear), c_void_p, c_int, c_void_p, c_void_p, c_int, c_int)
    found.forerun_linear.restype = None
    found.forerun_linear_slice.argtypes = (POINTER(NativeLinear), c_void_p, c_int, c_int, c_int, c_void_p)
    found.forerun_linear_slice.restype = None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The best tokens by total, best first, and the logarithm of the sum of exponentials of all totals."""

    token_ids: list[int]
    totals: list[float]
    log_sum: float


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [T, 2H], gate first, float32."""
    y_TH = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    library().forerun_silu_mul(floats(gate_up), *y_TH.shape, floats(y_TH))
    return y_TH


def rope_append(
    qkv: Tensor,
    cos_sin_P2D: Tensor,
    positions: list[int],
    keys_SKD: Tensor,
    values_SKD: Tensor,
    *,
    first_slot: int,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate queries and keys of [T, (Q + 2K) D], store keys and values from first_slot on.

    Args:
        cos_sin_P2D: float32 cosines and sines, see `forerun.model.rope.rope_table`.
        norms: weights [D] of the RMS norm of every query head and every key head before the rotation.

    Returns:
        the rotated queries, [T, Q, D] float32.
    """
    num_rows = len(qkv)
    num_kv_heads = keys_SKD.shape[1]
    head_dim = cos_sin_P2D.shape[-1]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q_TQD = qkv.new_empty(num_rows, num_heads, head_dim)
    places = torch.tensor(positions, dtype=torch.int32)
    q_norm, k_norm = (None, None) if norms is None else map(floats, norms)
    library().forerun_rope_append(
        floats(qkv), num_rows, byref(Heads(num_heads, num_kv_heads, head_dim)), floats(cos_sin_P2D),
        c_void_p(places.data_ptr()), q_norm, k_norm, c_float(eps), floats(q_TQD),
        byref(layer_cache(keys_SKD, values_SKD)), first_slot,
    )  # fmt: skip
    return q_TQD


def tree_attention(
    q_TQD: Tensor,
    keys_SKD: Tensor,
    values_SKD: Tensor,
    *,
    prefix_len: int,
    ancestry_TW: Tensor | None,
    rows_per_call: int = MOST_ROWS,
    window: int = 0,
) -> Tensor:
    """Attention of float32 queries with a cache of float32 or bfloat16.

    Args:
        prefix_len: slots that every row sees; without an ancestry row t sees `prefix_len + t + 1` slots.
        ancestry_TW: bool, who sees which slot behind the prefix.
        rows_per_call: into how many rows the work is cut; no result depends on it.
        window: slots that a row sees at most, the last ones; 0: all.

    Returns:
        [T, Q * D] float32.
    """
    num_rows, num_heads, head_dim = q_TQD.shape
    mixed = q_TQD.new_empty(num_rows, num_heads * head_dim)
    marks = None if ancestry_TW is None else ancestry_TW.to(torch.uint8).contiguous()
    seen = Visibility(num_rows, prefix_len, prefix_len, 0, None, window)
    if marks is not None:
        seen = Visibility(num_rows, 0, prefix_len, marks.shape[1], marks.data_ptr(), window)
    heads = Heads(num_heads, keys_SKD.shape[1], head_dim)
    library().forerun_tree_attention(
        floats(q_TQD), byref(heads), byref(layer_cache(keys_SKD, values_SKD)), byref(seen), rows_per_call, floats(mixed)
    )
    return mixed


def sample(
    scores_V: Tensor, *, key: int | None = None, temperature: float = 1.0, begin: int = 0, end: int | None = None
) -> tuple[int, float, float]:
    """The best token of [begin, end) by score / temperature + noise, its total, and the next best total.

    Args:
        key: 64 bits, `splitmix64(splitmix64(seed) ^ position)`; None for no noise.
    """
    end = len(scores_V) if end is None else end
    scratch = torch.empty(end - begin)
    top_two = TopTwo()
    library().forerun_sample(
        floats(scores_V), begin, end, c_float(temperature), byref(row_noise(key)), byref(top_two), floats(scratch)
    )
    return top_two.token, top_two.best, top_two.second


def topk(
    scores_V: Tensor, count: int, *, key: int | None = None, temperature: float = 1.0, ids: Tensor | None = None
) -> TopTokens:
    """The `count` best tokens, at most 16, by score / temperature + noise, the noise to about 2e-6."""
    ids_V = None if ids is None else c_void_p(ids.data_ptr())
    tokens = (c_int32 * count)()
    totals = (c_float * count)()
    scratch = torch.empty_like(scores_V)
    forerun_topk = library().forerun_topk
    forerun_topk.restype = c_float
    log_sum = forerun_topk(
        floats(scores_V), len(scores_V), c_float(temperature), byref(row_noise(key)), ids_V, c_int(count), tokens,
        totals, floats(scratch),
    )  # fmt: skip
    return TopTokens(token_ids=list(tokens), totals=list(totals), log_sum=log_sum)


def row_noise(key: int | None) -> RowNoise:
    return RowNoise(0, 0, 0) if key is None else RowNoise(key, key >> 32, 1)  # ctypes keeps the low 32 bits of each


def layer_cache(keys_SKD: Tensor, values_SKD: Tensor) -> LayerCache:
    assert keys_SKD.is_contiguous(), keys_SKD.stride()
    assert values_SKD.is_contiguous(), values_SKD.stride()
    assert keys_SKD.dtype == values_SKD.dtype, f"{keys_SKD.dtype} and {values_SKD.dtype}"
    slot_stride = keys_SKD.stride(0)
    return LayerCache(keys_SKD.data_ptr(), values_SKD.data_ptr(), CACHE_FORMATS[keys_SKD.dtype], slot_stride)


def floats(x: Tensor) -> c_void_p:
    assert x.dtype == torch.float32, x.dtype
    assert x.is_contiguous(), x.stride()
    return c_void_p(x.data_ptr())
