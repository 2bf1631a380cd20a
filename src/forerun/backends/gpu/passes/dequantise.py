"""Converts int8 and int4 weights to the compute dtype, exactly.

A code q becomes a float when it is placed in the last bits of one. In float16, 0x6400 | q is 1024 + q; subtracting 1024
gives q. In bfloat16 the bits of q alone are q times the smallest subnormal number, 2^-133; multiplying by 2^127 gives
q / 64. This works because bfloat16 arithmetic never flushes subnormal numbers (PTX ISA, half precision fma). Each
instruction converts the two halves of a register. Shifts and conversions would take four times as many instructions,
more than a GPU can run while a weight arrives from memory.

Legend: S words of a span (SPAN_WORDS), P pairs of them, O outputs of a tile, I input features, K some of them.
"""

from typing import Final

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import EMULATED

SPAN_INPUTS: Final = 128  # Inputs whose int4 weights are unpacked together.
SPAN_WORDS = tl.constexpr(SPAN_INPUTS // 8)
BFLOAT16_UNIT: Final = 2.0**-6  # The converted value of 1 in bfloat16; in other dtypes it is 1.
UNIT_OF_BFLOAT16 = tl.constexpr(BFLOAT16_UNIT)

# Converts two words, one nibble of both halves at a time: $0 to $3 are those of the first word, $4 to $7 those of the
# second. A nibble that is four bits higher is sixteen times as large; a multiplication by 1/16 corrects this. The zero
# to subtract is in one half of $10. Copying it to both halves is free, as an operand may name a half twice.
_UNPACK_BFLOAT16 = """
shr.u32 c, {word}, 8;
and.b32 a, {word}, 0x000f000f;
and.b32 d, {word}, 0x00f000f0;
and.b32 e, c, 0x00f000f0;
and.b32 c, c, 0x000f000f;
fma.rn.bf16x2 {0}, a, unit, less;
fma.rn.bf16x2 {1}, d, sixteenth, less;
fma.rn.bf16x2 {2}, c, unit, less;
fma.rn.bf16x2 {3}, e, sixteenth, less;
"""
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
_ZERO_BFLOAT16 = "and.b32 zero, $10, 0x000f000f;"
_ZERO_FLOAT16 = "lop3.b32 zero, $10, 0x000f000f, 0x64006400, 0xea;"
_CONSTANTS_BFLOAT16 = """
mov.b32 unit, 0x7f007f00;
mov.b32 sixteenth, 0x7d007d00;
mov.b32 minus, 0xff00ff00;
mov.b32 none, 0x80008000;
fma.rn.bf16x2 less, zero, minus, none;
"""
_CONSTANTS_FLOAT16 = """
mov.b32 sixteenth, 0x2c002c00;
mov.b32 most, 0x63806380;
sub.rn.f16x2 less, most, zero;
"""  # 960 - (1024 + zero) is -(64 + zero).


def _unpack_two_words(zero: str, half: str, constants: str, unpack: str) -> str:
    return (
        "{\n.reg .b32 a, c, d, e, zero, less, unit, sixteenth, minus, none, most;\n.reg .b16 low, high;\n"
        + f"{zero}\nmov.b32 {{low, high}}, zero;\nmov.b32 zero, {{{half}, {half}}};\n"
        + constants
        + unpack.format("$0", "$1", "$2", "$3", word="$8")
        + unpack.format("$4", "$5", "$6", "$7", word="$9")
        + "}\n"
    )


INT4_TO_BFLOAT16 = tl.constexpr(
    tuple(_unpack_two_words(_ZERO_BFLOAT16, half, _CONSTANTS_BFLOAT16, _UNPACK_BFLOAT16) for half in ("low", "high"))
)
INT4_TO_FLOAT16 = tl.constexpr(
    tuple(_unpack_two_words(_ZERO_FLOAT16, half, _CONSTANTS_FLOAT16, _UNPACK_FLOAT16) for half in ("low", "high"))
)
# Flipping the sign bit of a byte adds 128 to it, so that it is never negative.
INT8_TO_BFLOAT16 = tl.constexpr("""
{
.reg .b32 a, b, c, unit, less;
mov.b32 unit, 0x7f007f00;
mov.b32 less, 0xc000c000;
xor.b32 a, $2, 0x80808080;
prmt.b32 b, a, 0, 0x4140;
prmt.b32 c, a, 0, 0x4342;
fma.rn.bf16x2 $0, b, unit, less;
fma.rn.bf16x2 $1, c, unit, less;
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
    """The int8 weights as floats, in units of BFLOAT16_UNIT if the dtype is bfloat16."""
    if EMULATED or dtype == tl.float32:
        return in_units(bytes_IO, dtype)
    elif dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(INT8_TO_BFLOAT16, "=r,=r,r", [bytes_IO], tl.bfloat16, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise(INT8_TO_FLOAT16, "=r,=r,r", [bytes_IO], tl.float16, is_pure=True, pack=4)


@triton.jit
def int4_values(words_SO, zeros_1O, HALF: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, dtype: tl.constexpr):
    """The weights [K, O] of COUNT inputs of a span, beginning with input FIRST: codes minus zeros, in units of
    BFLOAT16_UNIT if the dtype is bfloat16.

    FIRST and COUNT are multiples of 16. The words are packed by `pack_words`; the words of an output are adjacent along
    S. The last four bits of each half of zeros_1O are a zero; HALF says which half is used, 0 being the lower one.
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
    """[COUNT * 16, O]: the tensors of COUNT places stacked. No number moves to another thread for that."""
    BLOCK_OUT: tl.constexpr = places[0].shape[1]
    HALF: tl.constexpr = COUNT // 2
    if COUNT == 1:  # The words of inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 are adjacent.
        place_T22O = tl.reshape(places[FIRST], (4, 2, 2, BLOCK_OUT))
        return tl.reshape(tl.permute(place_T22O, (1, 0, 2, 3)), (SPAN_WORDS, BLOCK_OUT))
    else:
        both_KO2 = tl.join(joined_places(places, FIRST, HALF), joined_places(places, FIRST + HALF, HALF))
        return tl.reshape(tl.permute(both_KO2, (2, 0, 1)), (COUNT * SPAN_WORDS, BLOCK_OUT))


@triton.jit
def plain_places(words_SO, zeros_1O, dtype: tl.constexpr):
    """Eight tensors [S, O], without assembly: the four nibbles of both halves, of even words, then of odd words."""
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
    """[S, O]: one nibble of both halves of each word, minus the zero of its output."""
    low_PO = (words_PO >> SHIFT) & 15
    high_PO = (words_PO >> (SHIFT + 16)) & 15
    codes_P2O = tl.permute(tl.join(low_PO, high_PO), (0, 2, 1))
    codes_SO = tl.reshape(codes_P2O, (SPAN_WORDS, words_PO.shape[1]))
    return in_units(codes_SO - zeros_1O, dtype)


@triton.jit
def in_units(numbers, dtype: tl.constexpr):
    """Small integers as floats in the units of this dtype, without assembly."""
    UNIT: tl.constexpr = UNIT_OF_BFLOAT16 if dtype == tl.bfloat16 else 1.0
    return (numbers.to(tl.float32) * UNIT).to(dtype)
