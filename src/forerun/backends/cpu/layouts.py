"""The structs of the C++ library, with the same fields as in cpp/kernels.h and cpp/program.h."""

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, Final

from forerun.model.gguf_block_types import BLOCKS

PLAIN_FORMATS: Final = ("float32", "bfloat16", "int8", "int4", "int8_wide")
FORMATS: Final = {name: number for number, name in enumerate((*PLAIN_FORMATS, *BLOCKS))}
EPILOGUES: Final = {"store": 0, "add": 1, "silu_mul": 2, "gelu_mul": 3, "clamped_mul": 4, "capped": 5}
GATES: Final = ("silu_mul", "gelu_mul")
OP_KINDS: Final = {
    "embed": 0, "norm": 1, "linear": 2, "rope_append": 3, "tree_attention": 4, "silu_mul": 5, "tap": 6,
    "add_partials": 7, "norm_add": 8, "norm_qk": 9, "gelu_mul": 10, "sum_partials": 7,
    "experts": 11, "scale": 12, "layer_inputs": 13, "gate_input": 14, "add": 15, "sigmoid_mul": 16, "convolve": 17,
    "gated_convolution": 17, "delta_net": 18,
}  # fmt: skip


Field = tuple[str, Any]


def pointers(*names: str) -> tuple[Field, ...]:
    return tuple((name, c_void_p) for name in names)


def numbers(*names: str) -> tuple[Field, ...]:
    return tuple((name, c_int32) for name in names)


class NativeLinear(Structure):
    """A packed weight."""

    _fields_ = (
        *pointers("weights", "scales", "zeros", "bias", "below"),
        *numbers("format", "num_out", "num_in", "padded_in", "group", "paired", "input_bits", "streams"),
    )


class Source(Structure):
    """An unpacked weight, see cpp/pack.h."""

    _fields_ = (*pointers("values", "scales", "zeros", "bias", "places"), ("file", c_int32))


class TopTwo(Structure):
    """A row's best token, its total, and the second-best total."""

    _fields_ = (("token", c_int32), ("best", c_float), ("second", c_float))


class Heads(Structure):
    _fields_ = numbers("num_heads", "num_kv_heads", "head_dim")


class NativeExperts(Structure):
    """The experts of an op: two arrays of linears, and buffers by number."""

    _fields_ = (
        *pointers("gate_up", "out"),
        *numbers("num_experts", "num_chosen", "router", "gated", "products"),
    )


class NativeMixer(Structure):
    """What a layer has in place of attention."""

    _fields_ = (
        *numbers("num_channels", "kernel_size", "num_slots", "num_states"),
        *numbers("num_key_heads", "num_value_heads", "key_dim", "value_dim", "has_tiled_keys", "stride", "lag"),
        *pointers("taps", "bias", "rates", "decay_bias", "scale", "inputs", "rows", "states", "held"),
    )


class NativeOp(Structure):
    """One op of a program. Buffers are given by number, -1 for none."""

    _fields_ = (
        *numbers("kind", "reads", "writes", "residual", "sublayer", "layer", "after_select", "epilogue", "window"),
        ("norms_values", c_int32),
        ("factor", c_float),
        ("heads", Heads),
        ("linear", NativeLinear),
        *pointers("norm", "q_norm", "k_norm", "cos_sin", "query_scales", "sinks", "experts", "mixer"),
    )


class NativeTable(Structure):
    """Rows by token: plain values, or a packed weight."""

    _fields_ = (("values", c_void_p), ("is_bf16", c_int32), ("packed", NativeLinear))


class Shape(Structure):
    """The model and its cache."""

    _fields_ = (
        *numbers("num_layers", "capacity"),
        ("eps", c_float),
        ("embedding_scale", c_float),
        ("table", NativeTable),
        ("layer_table", NativeTable),
        ("layer_table_scale", c_float),
        ("layer_input_size", c_int32),
        *pointers("keys", "values"),
        *numbers("slot_size", "cache_format"),
        ("known", c_void_p),
        ("num_sublayers", c_int32),
        ("link", c_void_p),
    )


class Buffer(Structure):
    _fields_ = (("data", c_void_p), ("width", c_int64))


class Pass(Structure):
    """One forward pass."""

    _fields_ = (
        *numbers("num_rows", "first_slot", "prefix_len", "num_logit_rows", "num_committed"),
        *pointers("token_ids", "positions", "ancestry", "skipped", "row_skips", "taps", "features"),
        ("num_taps", c_int32),
        ("stop", c_void_p),
    )
