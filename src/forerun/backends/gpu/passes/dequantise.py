"""Weights of 8 and 4 bits as numbers of the dtype that is computed in, all exactly.

A number of few bits becomes a float by being written into the last bits of one: 0x4300 | q is 128 + q in bfloat16,
0x6400 | q is 1024 + q in float16. Then a subtraction leaves q. Two halves of a register go through it at a time, so
that an int4 weight takes one and a half instructions and an int8 weight two. Shifts and conversions would take four
times as many, more than a GPU has time for while a weight arrives from memory.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import EMULATED

# From two words, the low halves a and the high halves b side by side, and of those one nibble of each half at a time.
_NIBBLES = """
{{
.reg .b32 a, b, c, one;
mov.b32 one, 0x3f803f80;
prmt.b32 a, $8, $9, 0x5410;
prmt.b32 b, $8, $9, 0x7632;
lop3.b32 $0, a, 0x000f000f, {base}, 0xea;
shr.u32 c, a, 4;
lop3.b32 $1, c, 0x000f000f, {base}, 0xea;
shr.u32 c, a, 8;
lop3.b32 $2, c, 0x000f000f, {base}, 0xea;
shr.u32 c, a, 12;
lop3.b32 $3, c, 0x000f000f, {base}, 0xea;
lop3.b32 $4, b, 0x000f000f, {base}, 0xea;
shr.u32 c, b, 4;
lop3.b32 $5, c, 0x000f000f, {base}, 0xea;
shr.u32 c, b, 8;
lop3.b32 $6, c, 0x000f000f, {base}, 0xea;
shr.u32 c, b, 12;
lop3.b32 $7, c, 0x000f000f, {base}, 0xea;
{sums}
}}
"""
_ADD_BFLOAT16 = "fma.rn.bf16x2 ${0}, ${0}, one, $10;"  # Not every GPU adds bfloat16 without multiplying.
_ADD_FLOAT16 = "add.rn.f16x2 ${0}, ${0}, $10;"
INT4_TO_BFLOAT16 = tl.constexpr(
    _NIBBLES.format(base="0x43004300", sums="\n".join(_ADD_BFLOAT16.format(place) for place in range(8)))
)
INT4_TO_FLOAT16 = tl.constexpr(
    _NIBBLES.format(base="0x64006400", sums="\n".join(_ADD_FLOAT16.format(place) for place in range(8)))
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
# -(128 + 0) and -(1024 + 0), twice; a zero is added to the last bits of both halves.
LESS_ZERO_BFLOAT16 = tl.constexpr(0xC300C300 - (1 << 32))
LESS_ZERO_FLOAT16 = tl.constexpr(0xE400E400 - (1 << 32))
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
def int4_values(words_JO, zeros_1O, dtype: tl.constexpr):
    """Eight tensors like words_JO: nibble 0 of each word less the zero of its output, nibble 1, ...

    The words of an output must stand next to each other along J.
    """
    if EMULATED or dtype == tl.float32:
        return (
            nibble(words_JO, zeros_1O, 0, dtype), nibble(words_JO, zeros_1O, 1, dtype),
            nibble(words_JO, zeros_1O, 2, dtype), nibble(words_JO, zeros_1O, 3, dtype),
            nibble(words_JO, zeros_1O, 4, dtype), nibble(words_JO, zeros_1O, 5, dtype),
            nibble(words_JO, zeros_1O, 6, dtype), nibble(words_JO, zeros_1O, 7, dtype),
        )  # fmt: skip
    elif dtype == tl.bfloat16:
        less_zeros_1O = zeros_1O * 0x00010001 + LESS_ZERO_BFLOAT16
        less_zeros_JO = tl.broadcast_to(less_zeros_1O, words_JO.shape)
        return tl.inline_asm_elementwise(
            INT4_TO_BFLOAT16,
            INT4_CONSTRAINTS,
            [words_JO, less_zeros_JO],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        less_zeros_1O = zeros_1O * 0x00010001 + LESS_ZERO_FLOAT16
        less_zeros_JO = tl.broadcast_to(less_zeros_1O, words_JO.shape)
        return tl.inline_asm_elementwise(
            INT4_TO_FLOAT16,
            INT4_CONSTRAINTS,
            [words_JO, less_zeros_JO],
            (tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def nibble(words_JO, zeros_1O, PLACE: tl.constexpr, dtype: tl.constexpr):
    """One nibble of each word less the zero of its output, without assembly."""
    return (((words_JO >> (4 * PLACE)) & 15) - zeros_1O).to(tl.float32).to(dtype)
