// Sixteen float or int32 lanes on any machine. Every kernel is written once with these functions and compiled once per
// instruction set (tier.cpp). Therefore all code is in unnamed namespaces, so that the linker cannot merge functions of
// different tiers. For the same reason kernels use no templates of the standard library.
//
//   F, I, Bytes, Mask     16 floats, 16 int32, 64 bytes, 16 booleans
//   load_n, store_n       the first n < 16 lanes; other loaded lanes are 0
//   fma(a, b, c)          a * b + c
//   sum, max_of           over the lanes; the order of the sum is fixed
//   load_bf16, store_bf16 16 bfloat16 to or from floats, rounded to nearest even; _n as above
//   load_u8, load_s8, load_f16  sixteen of them as floats
//   max, min              the second argument if either is NaN
//   compress(a, mask)     the lanes whose bits are set in `mask`, moved to the front; the others are undefined
//   transpose             transposes the words of some rows, see each
//   Bf16Input, store_bf16_inputs  bfloat16 inputs in the format of dot_bf16: bfloat16 if an instruction multiplies them
//                         (HAS_BF16_DOT), else widened to float
//   dot_bf16(s, w, x)     s[i] + w[2i+1] x[1], and to that + w[2i] x[0]: 16 outputs' pairs of weights with one pair
//   Dots, to_dots         accumulator of 16 int32 for the dots below, and its conversion from 16 int32
//   dot_s8(s, a, b, x)    s[i] + sum over j < 4 of a[4i+j] x[j] + b[4i+j] x[4+j], codes unsigned, x bytes, exact
//   dot_s16(s, w, x)      s[i] + sum over j < 4 of w[4i+j] x[j], x four inputs from store_s16, exact
//   Codes, split          64 bytes of codes in the format of dot_s16
//   codes_of_8_bits       bytes of weights in the format of the dots: unchanged, or minus 128 if SIGNED_CODES
//   codes_of_signed       signed bytes in the format of the dots: unchanged if SIGNED_CODES, or plus 128
//   store_s16             sixteen inputs of 16 bits in the format of dot_s16
//   The next four are for the matrix unit (matrix_unit.h), where __AMX_BF16__ is defined:
//   store_planes          the high bytes of sixteen inputs of 16 bits, rounded, and the low bytes that are left, both signed
//   store_bf16_pairs      sixteen whole numbers of at most 8 bits as bfloat16, four of them in the order 0, 2, 1, 3
//   look_up_pairs<SIZE>   split(a) with table[i] in place of each byte i < SIZE, where SIZE is 32 or 64
//   sub_bytes(a, less)    a less a number, byte by byte
//   MOST_BITS_BY_BYTES    largest number of bits of codes that dot_s8 can multiply
//   TILE_ROWS, TILE_PANELS   the largest tile whose sums and operands fit into the registers
//   BLOCK_QUERIES, BLOCK_VECTORS   the same for attention: queries, and vectors of scores or of values
//   BLOCK_ROWS, UNPACKED_ROWS   rows of the largest tile that unpacks codes on the fly, and of one with unpacked codes
//   MANY_ROWS             from this many rows on, codes are unpacked once for all rows
//   low_nibbles, high_nibbles   of each byte
//   two_bits<RIGHT>       of each byte, from bit RIGHT on
//   spread_words          sixteen words, in four bytes each: bits 0 to 3, 8 to 11, 4 to 7 and 12 to 15 in the low halves
//   look_up(a, table)     table[i] for each byte i < 16
//   add_bits<LEFT>(a, b, mask)  a | (b << LEFT & mask) of each byte, whose masked bits come from the same byte of b
//   prefetch, prefetch_once     into all caches; or bypassing them, for data that is read once
//   exp, log              to about 2 ulp; exp of NaN is NaN, log needs a positive, normal argument
//   log_split(e, m)       e ln 2 + log(1 + m), for |m| < 0.42; exact to 2 ulp also where m is tiny
//   silu(x)               x / (1 + exp(-x))
//   gelu(x)               its tanh approximation
//   tanh(x)               to about 2 ulp
#pragma once

#if defined(FORERUN_SMALL_TILES)
#define FORERUN_UNROLL  // with checks in every line, compilers take minutes for unrolled loops
#elif defined(__clang__)
#define FORERUN_UNROLL _Pragma("unroll")
#else
#define FORERUN_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__GNUC__)
#define FORERUN_INLINE inline __attribute__((always_inline))  // to share registers with the caller
#define FORERUN_APART __attribute__((noinline))  // to be compiled once for all callers
#else
#define FORERUN_INLINE inline
#define FORERUN_APART
#endif

#include <cstdint>

#if defined(FORERUN_TIER_AVX512)
#include "simd_avx512.h"
#elif defined(FORERUN_TIER_NEON)
#include "simd_neon.h"
#elif defined(FORERUN_TIER_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace forerun::simd {
namespace {

#ifndef __AMX_BF16__
inline void store_planes(char*, char*, I) {}  // nobody asks for these without a matrix unit
inline void store_bf16_pairs(char*, I) {}
#endif

// exp as 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes, S. Moshier). 0 below -87.3.
inline F exp(F x) {
    const Mask vanishes = less(x, set1(-87.33654f));
    const F bounded = min(set1(88.37626f), max(set1(-87.33654f), x));
    const F n = to_float(round_int(mul(bounded, set1(1.44269504088896341f))));
    F r = fma(n, set1(-0.693359375f), bounded);
    r = fma(n, set1(2.12194440e-4f), r);
    F p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    const F scale = from_bits(shift_left<23>(add_int(round_int(n), set1_int(127))));
    return select(vanishes, zero(), mul(p, scale));
}

// A polynomial for 1 + m on [sqrt(1/2), sqrt(2)] (Cephes).
inline F log_split(F e, F m) {
    const F square = mul(m, m);
    F p = set1(7.0376836292e-2f);
    p = fma(p, m, set1(-1.1514610310e-1f));
    p = fma(p, m, set1(1.1676998740e-1f));
    p = fma(p, m, set1(-1.2420140846e-1f));
    p = fma(p, m, set1(1.4249322787e-1f));
    p = fma(p, m, set1(-1.6668057665e-1f));
    p = fma(p, m, set1(2.0000714765e-1f));
    p = fma(p, m, set1(-2.4999993993e-1f));
    p = fma(p, m, set1(3.3333331174e-1f));
    F y = mul(mul(p, m), square);
    y = fma(e, set1(-2.12194440e-4f), y);
    y = fma(square, set1(-0.5f), y);
    return fma(e, set1(0.693359375f), add(m, y));
}

// Splits x into exponent and m: x = 2^exponent (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)].
inline F split(F x, F* m) {
    const I b = bits(x);
    const F e = to_float(sub_int(shift_right<23>(b), set1_int(126)));
    const F fraction = from_bits(or_int(and_int(b, set1_int(0x007fffff)), set1_int(0x3f000000)));  // in [1/2, 1)
    const Mask is_small = less(fraction, set1(0.707106781186547524f));
    *m = sub(select(is_small, add(fraction, fraction), fraction), set1(1.0f));
    return select(is_small, sub(e, set1(1.0f)), e);
}

inline F log(F x) {
    F m;
    const F e = split(x, &m);
    return log_split(e, m);
}

inline F silu(F x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }
// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)
inline F gelu(F x) {
    const F cubic = mul(x, fma(mul(x, x), set1(0.044715f), set1(1.0f)));
    return div(x, add(set1(1.0f), exp(mul(cubic, set1(-1.5957691216057308f)))));
}

// A polynomial for |x| < 0.625 (Cephes), else 1 - 2 / (exp(2 x) + 1).
inline F tanh(F x) {
    const F square = mul(x, x), size = max(x, sub(zero(), x));
    F p = set1(-5.70498872745e-3f);
    p = fma(p, square, set1(2.06390887954e-2f));
    p = fma(p, square, set1(-5.37397155531e-2f));
    p = fma(p, square, set1(1.33314442036e-1f));
    p = fma(p, square, set1(-3.33332819422e-1f));
    const F near = fma(mul(p, square), x, x);
    const F far = sub(set1(1.0f), div(set1(2.0f), add(exp(add(x, x)), set1(1.0f))));
    return select(less(size, set1(0.625f)), near, far);
}

}  // namespace
}  // namespace forerun::simd
