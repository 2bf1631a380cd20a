"""The structs of the C++ library, with the same fields as in cpp/kernels.h and cpp/program.h."""

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Final

from forerun.model.block_types import BLOCKS

PLAIN_FORMATS: Final = ("float32", "bfloat16", "int8", "int4", "int8_wide")
FORMATS: Final = {name: number for number, name in enumerate((*PLAIN_FORMATS, *BLOCKS))}
EPILOGUES: Final = {"store": 0, "add": 1, "silu_mul": 2}
OP_KINDS: Final = {
    "embed": 0, "norm": 1, "linear": 2, "rope_append": 3, "tree_attention": 4, "silu_mul": 5, "tap": 6,
    "add_partials": 7,
}  # fmt: skip


class NativeLinear(Structure):
    """A packed weight."""

    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("bias", c_void_p),
        ("below", c_void_p),
        ("format", c_int32),
        ("num_out", c_int32),
        ("num_in", c_int32),
        ("padded_in", c_int32),
        ("group", c_int32),
        ("paired", c_int32),
        ("input_bits", c_int32),
        ("streams", c_int32),
    )


class Source(Structure):
    """An unpacked weight, see cpp/pack.h."""

    _fields_ = (
        ("values", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("bias", c_void_p),
        ("places", c_void_p),
        ("file", c_int32),
    )


class TopTwo(Structure):
    """A row's best token, its total, and the second-best total."""

    _fields_ = (("token", c_int32), ("best", c_float), ("second", c_float))


class Heads(Structure):
    _fields_ = (("num_heads", c_int32), ("num_kv_heads", c_int32), ("head_dim", c_int32))


class NativeOp(Structure):
    """One op of a program. Buffers are given by number, -1 for none."""

    _fields_ = (
        ("kind", c_int32),
        ("reads", c_int32),
        ("writes", c_int32),
        ("residual", c_int32),
        ("sublayer", c_int32),
        ("layer", c_int32),
        ("after_select", c_int32),
        ("epilogue", c_int32),
        ("linear", NativeLinear),
        ("norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    )


class Shape(Structure):
    """The model and its cache."""

    _fields_ = (
        ("heads", Heads),
        ("num_layers", c_int32),
        ("capacity", c_int32),
        ("eps", c_float),
        ("table", c_void_p),
        ("table_is_bf16", c_int32),
        ("packed_table", NativeLinear),
        ("cos_sin", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("cache_is_bf16", c_int32),
        ("num_sublayers", c_int32),
        ("link", c_void_p),
    )


class Buffer(Structure):
    _fields_ = (("data", c_void_p), ("width", c_int64))


class Pass(Structure):
    """One forward pass."""

    _fields_ = (
        ("num_rows", c_int32),
        ("first_slot", c_int32),
        ("prefix_len", c_int32),
        ("num_logit_rows", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("ancestry", c_void_p),
        ("skipped", c_void_p),
        ("row_skips", c_void_p),
        ("taps", c_void_p),
        ("features", c_void_p),
        ("num_taps", c_int32),
    )
