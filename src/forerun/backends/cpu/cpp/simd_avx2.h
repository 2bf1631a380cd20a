// Sixteen lanes in two AVX2 registers (with FMA). simd.h describes the functions.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace forerun::simd {
namespace {

struct F { __m256 lo, hi; };
struct I { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };
struct Mask { __m256 lo, hi; };

inline __m256i read256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i read128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline int32_t read_int(const void* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline F load_n(const float* p, int n) {
    float all[16] = {};
    __builtin_memcpy(all, p, sizeof(float) * static_cast<unsigned>(n));
    return load(all);
}
inline void store_n(float* p, F a, int n) {
    float all[16];
    store(all, a);
    __builtin_memcpy(p, all, sizeof(float) * static_cast<unsigned>(n));
}
#define FORERUN_BOTH(name, op) \
    inline F name(F a, F b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
FORERUN_BOTH(add, _mm256_add_ps)
FORERUN_BOTH(sub, _mm256_sub_ps)
FORERUN_BOTH(mul, _mm256_mul_ps)
FORERUN_BOTH(div, _mm256_div_ps)
FORERUN_BOTH(max, _mm256_max_ps)
FORERUN_BOTH(min, _mm256_min_ps)
#undef FORERUN_BOTH
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }

inline __m256 widen_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(read128(p)), 16));
}
inline F load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline __m256i round_bf16(__m256 a) {  // in the low half of each lane
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan)), 16);
}
inline void store_bf16(uint16_t* p, F a) {
    const __m256i mixed = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}

inline F rounded_bf16(F a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(round_bf16(a.lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(round_bf16(a.hi), 16))};
}
inline F load_bf16_n(const uint16_t* p, int n) {
    uint16_t all[16] = {};
    __builtin_memcpy(all, p, sizeof(uint16_t) * static_cast<unsigned>(n));
    return load_bf16(all);
}
inline void store_bf16_n(uint16_t* p, F a, int n) {
    uint16_t all[16];
    store_bf16(all, a);
    __builtin_memcpy(p, all, sizeof(uint16_t) * static_cast<unsigned>(n));
}
inline F compress(F a, uint32_t mask) {
    float all[16];
    store(all, a);
    for (int n = 0; mask; mask &= mask - 1) all[n++] = all[__builtin_ctz(mask)];
    return load(all);
}

inline I set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I load_int(const int32_t* p) { return {read256(p), read256(p + 8)}; }
inline void store_int(int32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
#define FORERUN_BOTH(name, op) \
    inline I name(I a, I b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
FORERUN_BOTH(add_int, _mm256_add_epi32)
FORERUN_BOTH(sub_int, _mm256_sub_epi32)
FORERUN_BOTH(mul_int, _mm256_mullo_epi32)
FORERUN_BOTH(and_int, _mm256_and_si256)
FORERUN_BOTH(or_int, _mm256_or_si256)
FORERUN_BOTH(xor_int, _mm256_xor_si256)
#undef FORERUN_BOTH
template <int N> inline I shift_left(I a) { return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)}; }
template <int N> inline I shift_right(I a) { return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)}; }
inline I round_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline F from_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline I bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline I load_u8_int(const uint8_t* p) {
    const __m128i all = read128(p);
    return {_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))};
}
inline F load_s8(const int8_t* p) {
    const __m128i all = read128(p);
    return to_float(I{_mm256_cvtepi8_epi32(all), _mm256_cvtepi8_epi32(_mm_srli_si128(all, 8))});
}
inline F load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(read128(p)), _mm256_cvtph_ps(read128(p + 8))}; }
inline F load_u8(const uint8_t* p) { return to_float(load_u8_int(p)); }
inline void store_s8(int8_t* p, I a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline Mask less(F a, F b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
inline Mask less_equal(F a, F b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
inline F select(Mask m, F yes, F no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
inline I select_int(Mask m, I yes, I no) {
    return {_mm256_blendv_epi8(no.lo, yes.lo, _mm256_castps_si256(m.lo)),
            _mm256_blendv_epi8(no.hi, yes.hi, _mm256_castps_si256(m.hi))};
}
inline uint32_t to_bits(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}

inline float sum(F a) {
    const __m256 half = _mm256_add_ps(a.lo, a.hi);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float max_of(F a) {
    const __m256 half = _mm256_max_ps(a.lo, a.hi);
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

inline Bytes load_bytes(const void* p) { return {read256(p), read256(static_cast<const char*>(p) + 32)}; }
inline void store_bytes(char* p, Bytes b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), b.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), b.hi);
}
inline Bytes low_nibbles(Bytes b) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(b.lo, mask), _mm256_and_si256(b.hi, mask)};
}
inline Bytes high_nibbles(Bytes b) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(b.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(b.hi, 4), mask)};
}
template <int LEFT>
inline __m256i moved_bits(__m256i b, int mask) {
    constexpr int LEFTWARDS = LEFT > 0 ? LEFT : 0, RIGHTWARDS = LEFT < 0 ? -LEFT : 0;
    const __m256i moved = LEFT < 0 ? _mm256_srli_epi16(b, RIGHTWARDS) : _mm256_slli_epi16(b, LEFTWARDS);
    return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
}
template <int LEFT>
inline Bytes add_bits(Bytes a, Bytes b, int mask) {
    return {_mm256_or_si256(a.lo, moved_bits<LEFT>(b.lo, mask)), _mm256_or_si256(a.hi, moved_bits<LEFT>(b.hi, mask))};
}
template <int RIGHT>
inline Bytes two_bits(Bytes b) {
    return {moved_bits<-RIGHT>(b.lo, 3), moved_bits<-RIGHT>(b.hi, 3)};
}
inline __m256i spread_eight_words(const char* p) {
    const __m256i words = _mm256_cvtepu16_epi32(read128(p));
    return _mm256_or_si256(words, _mm256_slli_epi32(words, 12));
}
inline Bytes spread_words(const char* p) { return {spread_eight_words(p), spread_eight_words(p + 16)}; }
inline Bytes look_up(Bytes b, const uint8_t* table) {
    const __m256i both = _mm256_broadcastsi128_si256(read128(table));
    return {_mm256_shuffle_epi8(both, b.lo), _mm256_shuffle_epi8(both, b.hi)};
}
inline __m256 dot_bf16_half(__m256 sum, __m256i w, __m256 x_even, __m256 x_odd) {
    const __m256 w_even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    const __m256 w_odd = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
    return _mm256_fmadd_ps(w_even, x_even, _mm256_fmadd_ps(w_odd, x_odd, sum));
}
constexpr bool HAS_BF16_DOT = false;
using Bf16Input = float;  // widened once, not for every weight
inline void store_bf16_inputs(Bf16Input* p, F a) { store(p, rounded_bf16(a)); }
inline F dot_bf16(F sum, Bytes w, const Bf16Input* pair) {
    const __m256 even = _mm256_set1_ps(pair[0]), odd = _mm256_set1_ps(pair[1]);
    return {dot_bf16_half(sum.lo, w.lo, even, odd), dot_bf16_half(sum.hi, w.hi, even, odd)};
}

using Dots = I;
inline Dots to_dots(I a) { return a; }
// The codes of inputs 0 and 2, and those of inputs 1 and 3, as pairs of 16 bits.
struct Codes { __m256i even_lo, odd_lo, even_hi, odd_hi; };
constexpr bool SIGNED_CODES = false;
inline Bytes codes_of_8_bits(Bytes b) { return b; }
inline Bytes codes_of_signed(Bytes b) {
    const __m256i sign = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(b.lo, sign), _mm256_xor_si256(b.hi, sign)};
}
inline Codes split(Bytes b) {
    const __m256i low = _mm256_set1_epi16(0xff);
    return {_mm256_and_si256(b.lo, low), _mm256_srli_epi16(b.lo, 8), _mm256_and_si256(b.hi, low), _mm256_srli_epi16(b.hi, 8)};
}
inline Codes load_codes(const char* p) { return {read256(p), read256(p + 32), read256(p + 64), read256(p + 96)}; }
inline void store_codes(char* p, Codes c) {
    __m256i* to = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(to, c.even_lo);
    _mm256_storeu_si256(to + 1, c.odd_lo);
    _mm256_storeu_si256(to + 2, c.even_hi);
    _mm256_storeu_si256(to + 3, c.odd_hi);
}
inline void store_s16(char* p, I a) {
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);  // in order
    const __m256i pairs = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(mixed, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}
// Returns the same value, but hides from the compiler how it was computed. Otherwise GCC would split the sum into many
// partial sums, for which there are not enough registers.
inline __m256i as_one_sum(__m256i sum) {
#ifdef __GNUC__
    asm("" : "+x"(sum));
#endif
    return sum;
}
inline __m256i add_pairs(__m256i sum, __m256i w, __m256i x) {
#ifdef __AVXVNNI__
    return _mm256_dpwssd_avx_epi32(sum, w, x);
#else
    return as_one_sum(_mm256_add_epi32(sum, _mm256_madd_epi16(w, x)));
#endif
}
inline Dots dot_s16(Dots sum, Codes w, const char* x) {
    const __m256i even = _mm256_set1_epi32(read_int(x)), odd = _mm256_set1_epi32(read_int(x + 4));
    return {add_pairs(add_pairs(sum.lo, w.even_lo, even), w.odd_lo, odd),
            add_pairs(add_pairs(sum.hi, w.even_hi, even), w.odd_hi, odd)};
}
inline __m256i dot_s8_half(__m256i sum, __m256i a, __m256i b, __m256i x, __m256i y) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sum, a, x), b, y);
#else  // four products of at most 63 x 127 in 16 bits
    const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(a, x), _mm256_maddubs_epi16(b, y));
    return as_one_sum(_mm256_add_epi32(sum, _mm256_madd_epi16(both, _mm256_set1_epi16(1))));
#endif
}
inline Dots dot_s8(Dots sum, Bytes a, Bytes b, const char* x) {
    const __m256i first = _mm256_set1_epi32(read_int(x)), second = _mm256_set1_epi32(read_int(x + 4));
    return {dot_s8_half(sum.lo, a.lo, b.lo, first, second), dot_s8_half(sum.hi, a.hi, b.hi, first, second)};
}

#ifdef __AVXVNNI__
constexpr int MOST_BITS_BY_BYTES = 8;
#else
constexpr int MOST_BITS_BY_BYTES = 6;  // with 8 bits the sum of two products would overflow 16 bits
#endif
constexpr int TILE_ROWS = 5, TILE_PANELS = 1;  // ten halves of sums in 16 registers
constexpr int BLOCK_ROWS = 5, UNPACKED_ROWS = 6, MANY_ROWS = 9;
constexpr int BLOCK_QUERIES = 6, BLOCK_VECTORS = 1;  // the sums fit into the registers together with the operands

// The same as below for at most 8 rows and 8 words.
inline void transpose_8(const char* from, int64_t row_bytes, int num_rows, int num_words, int32_t* to, int to_stride) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i words = _mm256_cmpgt_epi32(_mm256_set1_epi32(num_words), lanes);
    __m256 a[8], b[8];
    for (int r = 0; r < 8; r++) {
        const void* row = from + (r < num_rows ? r : 0) * row_bytes;
        a[r] = _mm256_maskload_ps(static_cast<const float*>(row), words);
    }
    for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
    for (int r = 0; r < 8; r += 4) {
        a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
        a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
        a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
        a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
    for (int w = 0; w < 8; w++)
        if (w < num_words) _mm256_storeu_ps(reinterpret_cast<float*>(to + w * to_stride), b[w]);
}

// Transposes words [0, num_words) of `num_rows` rows, at most 16 each: word w of row r goes to to[w * to_stride + r].
// `to` is written in whole vectors: elements after the last row are undefined.
inline void transpose(const char* from, int64_t row_bytes, int num_rows, int num_words, int32_t* to, int to_stride) {
    for (int w = 0; w < num_words; w += 8)
        for (int r = 0; r < num_rows; r += 8)
            transpose_8(from + r * row_bytes + 4 * w, row_bytes, num_rows - r, num_words - w, to + w * to_stride + r,
                        to_stride);
}

FORERUN_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
FORERUN_INLINE void prefetch_once(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_NTA); }

}  // namespace
}  // namespace forerun::simd
