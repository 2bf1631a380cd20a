// Sixteen lanes in one AVX-512 register. simd.h describes the functions.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace forerun::simd {
namespace {

struct F { __m512 v; };
struct I { __m512i v; };
struct Bytes { __m512i v; };
struct Mask { __mmask16 v; };

inline F zero() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline F load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline __m256i round_bf16(F a) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(a.v);
#else
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
#endif
}
inline void store_bf16(uint16_t* p, F a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(a)); }

inline F rounded_bf16(F a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(round_bf16(a)), 16))};
}
inline F load_bf16_n(const uint16_t* p, int n) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_bf16_n(uint16_t* p, F a, int n) { _mm256_mask_storeu_epi16(p, first(n), round_bf16(a)); }
inline F compress(F a, uint32_t mask) { return {_mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v)}; }

inline I set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_int(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I add_int(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I sub_int(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I mul_int(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I and_int(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I or_int(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
inline I xor_int(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N> inline I shift_left(I a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> inline I shift_right(I a) { return {_mm512_srli_epi32(a.v, N)}; }  // logical shift
inline I round_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline F from_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline I bits(F a) { return {_mm512_castps_si512(a.v)}; }
inline I load_u8_int(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline F load_s8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F load_u8(const uint8_t* p) { return to_float(load_u8_int(p)); }
inline void store_s8(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}

inline Mask less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask less_equal(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline F select(Mask m, F yes, F no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline I select_int(Mask m, I yes, I no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }
inline uint32_t to_bits(Mask m) { return m.v; }

inline float sum(F a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float max_of(F a) { return _mm512_reduce_max_ps(a.v); }

inline Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_bytes(char* p, Bytes b) { _mm512_storeu_si512(p, b.v); }
inline Bytes low_nibbles(Bytes b) { return {_mm512_and_si512(b.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes b) { return {_mm512_and_si512(_mm512_srli_epi16(b.v, 4), _mm512_set1_epi8(15))}; }
template <int LEFT>
inline Bytes add_bits(Bytes a, Bytes b, int mask) {
    constexpr int LEFTWARDS = LEFT > 0 ? LEFT : 0, RIGHTWARDS = LEFT < 0 ? -LEFT : 0;
    const __m512i moved = LEFT < 0 ? _mm512_srli_epi16(b.v, RIGHTWARDS) : _mm512_slli_epi16(b.v, LEFTWARDS);
    return {_mm512_ternarylogic_epi32(a.v, moved, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8)};
}
template <int RIGHT>
inline Bytes two_bits(Bytes b) {
    return {_mm512_and_si512(_mm512_srli_epi16(b.v, RIGHT), _mm512_set1_epi8(3))};
}
inline Bytes spread_words(const char* p) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_or_si512(words, _mm512_slli_epi32(words, 12))};
}
inline Bytes look_up(Bytes b, const uint8_t* table) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), b.v)};
}
inline int32_t read_int(const void* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
#ifdef __AVX512BF16__
constexpr bool HAS_BF16_DOT = true;
using Bf16Input = uint16_t;
inline void store_bf16_inputs(Bf16Input* p, F a) { store_bf16(p, a); }
inline F dot_bf16(F sum, Bytes w, const Bf16Input* pair) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32(read_int(pair)))};
}
#else
constexpr bool HAS_BF16_DOT = false;
using Bf16Input = float;  // widened once, not for every weight
inline void store_bf16_inputs(Bf16Input* p, F a) { store(p, rounded_bf16(a)); }
inline F dot_bf16(F sum, Bytes w, const Bf16Input* pair) {
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(w.v, 16));
    const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(w.v, high));
    const __m512 odd_first = _mm512_fmadd_ps(w_odd, _mm512_set1_ps(pair[1]), sum.v);
    return {_mm512_fmadd_ps(w_even, _mm512_set1_ps(pair[0]), odd_first)};
}
#endif

// GCC's own vector type of int32, since with __m512i it copies every sum before and after each instruction.
struct Dots { __v16si v; };
inline Dots to_dots(I a) { return {(__v16si)a.v}; }
inline F to_float(Dots a) { return {_mm512_cvtepi32_ps((__m512i)a.v)}; }
// The codes of inputs 0 and 2, and those of inputs 1 and 3, as pairs of 16 bits.
struct Codes { __m512i even, odd; };
constexpr bool SIGNED_CODES = false;
inline Bytes codes_of_8_bits(Bytes b) { return b; }
inline Bytes codes_of_signed(Bytes b) { return {_mm512_xor_si512(b.v, _mm512_set1_epi8(-128))}; }
inline Codes split(Bytes b) { return {_mm512_and_si512(b.v, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(b.v, 8)}; }
inline Codes load_codes(const char* p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64)}; }
inline void store_codes(char* p, Codes c) {
    _mm512_storeu_si512(p, c.even);
    _mm512_storeu_si512(p + 64, c.odd);
}
inline void store_s16(char* p, I a) {
    const __m256i words = _mm512_cvtsepi32_epi16(a.v);
    const __m256i pairs = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}
#ifdef __AMX_BF16__
inline void store_bf16_pairs(char* p, I a) {
    const __m256i words = round_bf16(to_float(a));
    const __m256i pairs = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}
template <int SIZE>
inline Codes look_up_pairs(Bytes b, const uint16_t* table) {  // an index is the low bits of a word, the next byte does not matter
    const __m512i odd = _mm512_srli_epi16(b.v, 8), first = _mm512_load_si512(table);
    if constexpr (SIZE == 32) return {_mm512_permutexvar_epi16(b.v, first), _mm512_permutexvar_epi16(odd, first)};
    const __m512i second = _mm512_load_si512(table + 32 % SIZE);
    return {_mm512_permutex2var_epi16(first, b.v, second), _mm512_permutex2var_epi16(first, odd, second)};
}
inline Bytes sub_bytes(Bytes b, int less) { return {_mm512_sub_epi8(b.v, _mm512_set1_epi8(static_cast<char>(less)))}; }
inline void store_planes(char* high, char* low, I a) {
    const __m512i rounded = _mm512_srai_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(rounded));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(a.v));
}
#endif
#ifdef __AVX512VNNI__
inline Dots dot_s16(Dots sum, Codes w, const char* x) {
    const __m512i even = _mm512_set1_epi32(read_int(x)), odd = _mm512_set1_epi32(read_int(x + 4));
    return {(__v16si)_mm512_dpwssd_epi32(_mm512_dpwssd_epi32((__m512i)sum.v, w.even, even), w.odd, odd)};
}
inline Dots dot_s8(Dots sum, Bytes a, Bytes b, const char* x) {
    const __m512i first = _mm512_set1_epi32(read_int(x)), second = _mm512_set1_epi32(read_int(x + 4));
    return {(__v16si)_mm512_dpbusd_epi32(_mm512_dpbusd_epi32((__m512i)sum.v, a.v, first), b.v, second)};
}
constexpr int MOST_BITS_BY_BYTES = 8;
#else
// Returns the same value, but hides from the compiler how it was computed. Otherwise GCC would split the sum into many
// partial sums, for which there are not enough registers.
inline Dots as_one_sum(Dots sum) {
#ifdef __GNUC__
    asm("" : "+v"(sum.v));
#endif
    return sum;
}
inline Dots dot_s16(Dots sum, Codes w, const char* x) {
    const __m512i even = _mm512_madd_epi16(w.even, _mm512_set1_epi32(read_int(x)));
    const __m512i odd = _mm512_madd_epi16(w.odd, _mm512_set1_epi32(read_int(x + 4)));
    return as_one_sum({sum.v + ((__v16si)even + (__v16si)odd)});
}
inline Dots dot_s8(Dots sum, Bytes a, Bytes b, const char* x) {  // four products of at most 63 x 127 in 16 bits
    const __m512i first = _mm512_maddubs_epi16(a.v, _mm512_set1_epi32(read_int(x)));
    const __m512i second = _mm512_maddubs_epi16(b.v, _mm512_set1_epi32(read_int(x + 4)));
    return as_one_sum({sum.v + (__v16si)_mm512_madd_epi16(_mm512_add_epi16(first, second), _mm512_set1_epi16(1))});
}
constexpr int MOST_BITS_BY_BYTES = 6;  // with 8 bits the sum of two products would overflow 16 bits
#endif

#ifdef FORERUN_SMALL_TILES
constexpr int TILE_ROWS = 2, BLOCK_ROWS = 2, UNPACKED_ROWS = 2;
#else
constexpr int TILE_ROWS = 12;  // with two panels 24 sums in 32 registers
constexpr int BLOCK_ROWS = 8, UNPACKED_ROWS = 8;
#endif
constexpr int TILE_PANELS = 2, MANY_ROWS = 13;
constexpr int BLOCK_QUERIES = 4, BLOCK_VECTORS = 4;  // the sums fit into the registers together with the operands

// Transposes words [0, num_words) of `num_rows` rows, at most 16 each: word w of row r goes to to[w * to_stride + r].
// `to` is written in whole vectors: elements after the last row are undefined.
inline void transpose(const char* from, int64_t row_bytes, int num_rows, int num_words, int32_t* to, int to_stride) {
    __m512i a[16], b[16];
    const __mmask16 words = first(num_words);
    FORERUN_UNROLL
    for (int r = 0; r < 16; r++) a[r] = _mm512_maskz_loadu_epi32(words, from + (r < num_rows ? r : 0) * row_bytes);
    FORERUN_UNROLL
    for (int r = 0; r < 16; r += 2) {
        b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
    }
    FORERUN_UNROLL
    for (int r = 0; r < 16; r += 4) {  // a[r + i]: word i of four rows in each quarter 4q + i
        a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
        a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
        a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
        a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
    }
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512i left = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        const __m512i left_odd = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        const __m512i right = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        const __m512i right_odd = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        b[i] = _mm512_shuffle_i32x4(left, right, 0x88);
        b[i + 8] = _mm512_shuffle_i32x4(left, right, 0xdd);
        b[i + 4] = _mm512_shuffle_i32x4(left_odd, right_odd, 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(left_odd, right_odd, 0xdd);
    }
    FORERUN_UNROLL
    for (int w = 0; w < 16; w++)
        if (w < num_words) _mm512_storeu_si512(to + w * to_stride, b[w]);
}

FORERUN_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
FORERUN_INLINE void prefetch_once(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_NTA); }

}  // namespace
}  // namespace forerun::simd
