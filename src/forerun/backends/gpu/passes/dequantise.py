"""Weights of 8 and 4 bits as numbers of the dtype that is computed in, all exactly.

A number of few bits becomes a float by being written into the last bits of one: 0x4300 | q is 128 + q in bfloat16,
0x6400 | q is 1024 + q in float16. Then a subtraction leaves q. Two halves of a register go through it at a time.
Shifts and conversions would take four times as many instructions, more than a GPU has time for while a weight arrives
from memory.

Legend: S words of a span (SPAN_WORDS), P pairs of them, O outputs of a tile, I input features, K some of them.
"""

from typing import Final

import triton
import triton.language as tl

from forerun.backends.gpu.language import EMULATED

SPAN_INPUTS: Final = 128  # Inputs whose int4 weights are unpacked together.
SPAN_WORDS = tl.constexpr(SPAN_INPUTS // 8)

# Of each of two words one nibble of both halves at a time: $0 to $3 of the first word, $4 to $7 of the second. The zero
# to subtract is in one half of $10; what is moved to both halves takes no instruction, as an operand may be one half
# twice.
_UNPACK_BFLOAT16 = """
shr.u32 c, {word}, 4;
shr.u32 d, {word}, 8;
shr.u32 e, {word}, 12;
lop3.b32 a, {word}, 0x000f000f, 0x43004300, 0xea;
lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
lop3.b32 e, e, 0x000f000f, 0x43004300, 0xea;
fma.rn.bf16x2 {0}, zero, minus, a;
fma.rn.bf16x2 {1}, zero, minus, c;
fma.rn.bf16x2 {2}, zero, minus, d;
fma.rn.bf16x2 {3}, zero, minus, e;
"""  # Not every GPU subtracts bfloat16 without multiplying.
# float16 has room for a nibble four bits further up, sixteen times as large, which a multiplication makes up for.
_UNPACK_FLOAT16 = """
shr.u32 c, {word}, 8;
lop3.b32 a, {word}, 0x000f000f, 0x64006400, 0xea;
lop3.b32 d, {word}, 0x00f000f0, 0x64006400, 0xea;
lop3.b32 e, c, 0x00f000f0, 0x64006400, 0xea;
lop3.b32 c, c, 0x000f000f, 0x64006400, 0xea;
sub.rn.f16x2 {0}, a, zero;
fma.rn.f16x2 {1}, d, sixteenth, less;
sub.rn.f16x2 {2}, c, zero;
fma.rn.f16x2 {3}, e, sixteenth, less;
"""


def _unpack_two_words(unpack: str, base: str, constants: str, half: str) -> str:
    return (
        "{\n.reg .b32 a, c, d, e, zero, minus, less, most, sixteenth;\n.reg .b16 low, high;\n"
        + f"lop3.b32 zero, $10, 0x000f000f, {base}, 0xea;\n"
        + f"mov.b32 {{low, high}}, zero;\nmov.b32 zero, {{{half}, {half}}};\n"
        + constants
        + unpack.format("$0", "$1", "$2", "$3", word="$8")
        + unpack.format("$4", "$5", "$6", "$7", word="$9")
        + "}\n"
    )


INT4_TO_BFLOAT16 = tl.constexpr(
    tuple(
        _unpack_two_words(_UNPACK_BFLOAT16, "0x43004300", "mov.b32 minus, 0xbf80bf80;\n", half)
        for half in ("low", "high")
    )
)
INT4_TO_FLOAT16 = tl.constexpr(
    tuple(
        _unpack_two_words(
            _UNPACK_FLOAT16,
            "0x64006400",
            "mov.b32 sixteenth, 0x2c002c00;\nmov.b32 most, 0x63806380;\n"
            "sub.rn.f16x2 less, most, zero;\n",  # 960 - (1024 + zero) is -(64 + zero).
            half,
        )
        for half in ("low", "high")
    )
)
# Of a byte, the low seven bits are added to 128, and 128 or, where the eighth bit is set, 256 is taken away.
INT8_TO_BFLOAT16 = tl.constexpr("""
{
.reg .b32 a, b, c, d, one;
mov.b32 one, 0x3f803f80;
prmt.b32 a, $2, 0, 0x4140;
prmt.b32 b, $2, 0, 0x4342;
lop3.b32 c, a, 0x00800080, 0xc300c300, 0xea;
lop3.b32 d, b, 0x00800080, 0xc300c300, 0xea;
lop3.b32 a, a, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, b, 0x007f007f, 0x43004300, 0xea;
fma.rn.bf16x2 $0, a, one, c;
fma.rn.bf16x2 $1, b, one, d;
}
""")
INT8_TO_FLOAT16 = tl.constexpr("""
{
.reg .b32 a, b, c, less;
mov.b32 less, 0xe480e480;
xor.b32 a, $2, 0x80808080;
prmt.b32 b, a, 0x64646464, 0x4140;
prmt.b32 c, a, 0x64646464, 0x4342;
add.rn.f16x2 $0, b, less;
add.rn.f16x2 $1, c, less;
}
""")
INT4_CONSTRAINTS = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r")


@triton.jit
def int8_values(bytes_IO, dtype: tl.constexpr):
    """The bytes as numbers."""
    if EMULATED or dtype == tl.float32:
        return bytes_IO.to(tl.float32).to(dtype)
    elif dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(INT8_TO_BFLOAT16, "=r,=r,r", [bytes_IO], tl.bfloat16, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise(INT8_TO_FLOAT16, "=r,=r,r", [bytes_IO], tl.float16, is_pure=True, pack=4)


@triton.jit
def int4_values(words_SO, zeros_1O, HALF: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, dtype: tl.constexpr):
    """The weights [K, O] of COUNT inputs of a span, from input FIRST of it on: their codes less the zeros.

    FIRST and COUNT are multiples of 16. The words are those of `pack_words`, and those of an output stand next to each
    other along S. The last four bits of each half of zeros_1O are a zero: that of HALF counts, 0 being the lower one.
    """
    if EMULATED or dtype == tl.float32:
        places = plain_places(words_SO, (zeros_1O >> (16 * HALF)) & 15, dtype)
    elif dtype == tl.bfloat16:
        places = tl.inline_asm_elementwise(
            INT4_TO_BFLOAT16[HALF],
            INT4_CONSTRAINTS,
            [words_SO, tl.broadcast_to(zeros_1O, words_SO.shape)],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        places = tl.inline_asm_elementwise(
            INT4_TO_FLOAT16[HALF],
            INT4_CONSTRAINTS,
            [words_SO, tl.broadcast_to(zeros_1O, words_SO.shape)],
            (tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return joined_places(places, FIRST // SPAN_WORDS, COUNT // SPAN_WORDS)


@triton.jit
def joined_places(places, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """[COUNT * 16, O]: one place's inputs below the other's. No number leaves its thread for that."""
    BLOCK_OUT: tl.constexpr = places[0].shape[1]
    HALF: tl.constexpr = COUNT // 2
    if COUNT == 1:  # The words of inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 lie together.
        place_T22O = tl.reshape(places[FIRST], (4, 2, 2, BLOCK_OUT))
        return tl.reshape(tl.permute(place_T22O, (1, 0, 2, 3)), (SPAN_WORDS, BLOCK_OUT))
    else:
        both_KO2 = tl.join(joined_places(places, FIRST, HALF), joined_places(places, FIRST + HALF, HALF))
        return tl.reshape(tl.permute(both_KO2, (2, 0, 1)), (COUNT * SPAN_WORDS, BLOCK_OUT))


@triton.jit
def plain_places(words_SO, zeros_1O, dtype: tl.constexpr):
    """Eight tensors [S, O], without assembly: of even and odd words the four nibbles of both halves."""
    BLOCK_OUT: tl.constexpr = words_SO.shape[1]
    words_PO2 = tl.permute(tl.reshape(words_SO, (SPAN_WORDS // 2, 2, BLOCK_OUT)), (0, 2, 1))
    even_PO, odd_PO = tl.split(words_PO2)
    return (
        nibbles(even_PO, zeros_1O, 0, dtype), nibbles(even_PO, zeros_1O, 4, dtype),
        nibbles(even_PO, zeros_1O, 8, dtype), nibbles(even_PO, zeros_1O, 12, dtype),
        nibbles(odd_PO, zeros_1O, 0, dtype), nibbles(odd_PO, zeros_1O, 4, dtype),
        nibbles(odd_PO, zeros_1O, 8, dtype), nibbles(odd_PO, zeros_1O, 12, dtype),
    )  # fmt: skip


@triton.jit
def nibbles(words_PO, zeros_1O, SHIFT: tl.constexpr, dtype: tl.constexpr):
    """[S, O]: one nibble of both halves of each word less the zero of its output."""
    low_PO, high_PO = (words_PO >> SHIFT) & 15, (words_PO >> (SHIFT + 16)) & 15
    codes_P2O = tl.permute(tl.join(low_PO, high_PO), (0, 2, 1))
    codes_SO = tl.reshape(codes_P2O, (SPAN_WORDS, words_PO.shape[1]))
    return (codes_SO - zeros_1O).to(tl.float32).to(dtype)
