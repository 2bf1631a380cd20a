// Sixteen lanes as an array and plain loops, which compilers vectorize. simd.h describes the functions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace forerun::simd {
namespace {

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };
struct Mask { int32_t v[16]; };  // all bits or none

#define FORERUN_EACH(Type, expression)            \
    Type r;                                       \
    for (int i = 0; i < 16; i++) r.v[i] = expression; \
    return r

inline uint32_t as_bits(float x) {
    uint32_t b;
    std::memcpy(&b, &x, sizeof b);
    return b;
}
inline float as_float(uint32_t b) {
    float x;
    std::memcpy(&x, &b, sizeof x);
    return x;
}
inline uint32_t u(int32_t x) { return static_cast<uint32_t>(x); }
inline int32_t s(uint32_t x) { return static_cast<int32_t>(x); }

inline F set1(float x) { FORERUN_EACH(F, x); }
inline F zero() { return set1(0.0f); }
inline F load(const float* p) { FORERUN_EACH(F, p[i]); }
inline void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
inline F load_n(const float* p, int n) { FORERUN_EACH(F, i < n ? p[i] : 0.0f); }
inline void store_n(float* p, F a, int n) { std::memcpy(p, a.v, sizeof(float) * static_cast<unsigned>(n)); }
inline F add(F a, F b) { FORERUN_EACH(F, a.v[i] + b.v[i]); }
inline F sub(F a, F b) { FORERUN_EACH(F, a.v[i] - b.v[i]); }
inline F mul(F a, F b) { FORERUN_EACH(F, a.v[i] * b.v[i]); }
inline F div(F a, F b) { FORERUN_EACH(F, a.v[i] / b.v[i]); }
inline F max(F a, F b) { FORERUN_EACH(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F min(F a, F b) { FORERUN_EACH(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F fma(F a, F b, F c) { FORERUN_EACH(F, a.v[i] * b.v[i] + c.v[i]); }  // fused if the machine has FMA

inline F load_bf16(const uint16_t* p) { FORERUN_EACH(F, as_float(static_cast<uint32_t>(p[i]) << 16)); }
inline uint16_t round_bf16(float x) {
    const uint32_t b = as_bits(x);
    const uint32_t rounded = x == x ? b + 0x7fffu + (b >> 16 & 1u) : b | 0x400000u;
    return static_cast<uint16_t>(rounded >> 16);
}
inline void store_bf16(uint16_t* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = round_bf16(a.v[i]);
}

inline F load_bf16_n(const uint16_t* p, int n) {
    FORERUN_EACH(F, i < n ? as_float(static_cast<uint32_t>(p[i]) << 16) : 0.0f);
}
inline void store_bf16_n(uint16_t* p, F a, int n) {
    for (int i = 0; i < n; i++) p[i] = round_bf16(a.v[i]);
}
inline F compress(F a, uint32_t mask) {
    for (int i = 0, n = 0; mask; i++, mask >>= 1)
        if (mask & 1u) a.v[n++] = a.v[i];
    return a;
}

inline I set1_int(int32_t x) { FORERUN_EACH(I, x); }
inline I load_int(const int32_t* p) { FORERUN_EACH(I, p[i]); }
inline void store_int(int32_t* p, I a) { std::memcpy(p, a.v, sizeof a.v); }
inline I add_int(I a, I b) { FORERUN_EACH(I, s(u(a.v[i]) + u(b.v[i]))); }
inline I sub_int(I a, I b) { FORERUN_EACH(I, s(u(a.v[i]) - u(b.v[i]))); }
inline I mul_int(I a, I b) { FORERUN_EACH(I, s(u(a.v[i]) * u(b.v[i]))); }
inline I and_int(I a, I b) { FORERUN_EACH(I, a.v[i] & b.v[i]); }
inline I or_int(I a, I b) { FORERUN_EACH(I, a.v[i] | b.v[i]); }
inline I xor_int(I a, I b) { FORERUN_EACH(I, a.v[i] ^ b.v[i]); }
template <int N> inline I shift_left(I a) { FORERUN_EACH(I, s(u(a.v[i]) << N)); }
template <int N> inline I shift_right(I a) { FORERUN_EACH(I, s(u(a.v[i]) >> N)); }
inline I round_int(F a) {  // out-of-range values become the lowest int32, as on x86
    FORERUN_EACH(I, std::fabs(a.v[i]) < 2147483648.0f ? static_cast<int32_t>(std::nearbyintf(a.v[i])) : INT32_MIN);
}
inline F to_float(I a) { FORERUN_EACH(F, static_cast<float>(a.v[i])); }
inline F from_bits(I a) { FORERUN_EACH(F, as_float(u(a.v[i]))); }
inline I bits(F a) { FORERUN_EACH(I, s(as_bits(a.v[i]))); }
inline I load_u8_int(const uint8_t* p) { FORERUN_EACH(I, p[i]); }
inline F load_s8(const int8_t* p) { FORERUN_EACH(F, static_cast<float>(p[i])); }
inline float widen_f16(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return as_float(sign | 0x7f800000u | magnitude << 13);
    return as_float(sign | as_bits(as_float(magnitude << 13) * 0x1p112f));  // the exponent's bias was 15, not 127
}
inline F load_f16(const uint16_t* p) { FORERUN_EACH(F, widen_f16(p[i])); }
inline F load_u8(const uint8_t* p) { FORERUN_EACH(F, static_cast<float>(p[i])); }
inline void store_s8(int8_t* p, I a) {
    for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}

inline Mask less(F a, F b) { FORERUN_EACH(Mask, -static_cast<int32_t>(a.v[i] < b.v[i])); }
inline Mask less_equal(F a, F b) { FORERUN_EACH(Mask, -static_cast<int32_t>(a.v[i] <= b.v[i])); }
inline I select_int(Mask m, I yes, I no) { FORERUN_EACH(I, (yes.v[i] & m.v[i]) | (no.v[i] & ~m.v[i])); }
inline F select(Mask m, F yes, F no) { return from_bits(select_int(m, bits(yes), bits(no))); }
inline uint32_t to_bits(Mask m) {
    uint32_t all = 0;
    for (int i = 0; i < 16; i++) all |= (u(m.v[i]) & 1u) << i;
    return all;
}

inline float sum(F a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
    return a.v[0];
}
inline float max_of(F a) {
    float most = a.v[0];
    for (int i = 1; i < 16; i++) most = a.v[i] > most ? a.v[i] : most;
    return most;
}

inline Bytes load_bytes(const void* p) {
    Bytes b;
    std::memcpy(b.v, p, sizeof b.v);
    return b;
}
inline void store_bytes(char* p, Bytes b) { std::memcpy(p, b.v, sizeof b.v); }
inline Bytes low_nibbles(Bytes b) {
    for (auto& x : b.v) x &= 15;
    return b;
}
inline Bytes high_nibbles(Bytes b) {
    for (auto& x : b.v) x = static_cast<uint8_t>(x >> 4);
    return b;
}
template <int LEFT>
inline Bytes add_bits(Bytes a, Bytes b, int mask) {
    constexpr int LEFTWARDS = LEFT > 0 ? LEFT : 0, RIGHTWARDS = LEFT < 0 ? -LEFT : 0;
    for (int i = 0; i < 64; i++) a.v[i] |= static_cast<uint8_t>((b.v[i] << LEFTWARDS >> RIGHTWARDS) & mask);
    return a;
}
template <int RIGHT>
inline Bytes two_bits(Bytes b) {
    for (auto& x : b.v) x = x >> RIGHT & 3;
    return b;
}
inline Bytes spread_words(const char* p) {
    uint16_t words[16];
    std::memcpy(words, p, sizeof words);
    Bytes b;
    for (int i = 0; i < 16; i++) {
        const uint32_t spread = words[i] | static_cast<uint32_t>(words[i]) << 12;
        std::memcpy(b.v + 4 * i, &spread, 4);
    }
    return b;
}
inline Bytes look_up(Bytes b, const uint8_t* table) {
    for (auto& x : b.v) x = table[x];
    return b;
}
constexpr bool HAS_BF16_DOT = false;
using Bf16Input = float;
inline void store_bf16_inputs(Bf16Input* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = as_float(static_cast<uint32_t>(round_bf16(a.v[i])) << 16);
}
inline F dot_bf16(F sum, Bytes w, const Bf16Input* pair) {
    uint32_t words[16];
    std::memcpy(words, w.v, sizeof words);
    for (int i = 0; i < 16; i++) {
        sum.v[i] += as_float(words[i] & 0xffff0000u) * pair[1];
        sum.v[i] += as_float(words[i] << 16) * pair[0];
    }
    return sum;
}
using Dots = I;
inline Dots to_dots(I a) { return a; }
using Codes = Bytes;
constexpr bool SIGNED_CODES = false;
inline Bytes codes_of_8_bits(Bytes b) { return b; }
inline Bytes codes_of_signed(Bytes b) {
    for (auto& x : b.v) x ^= 0x80;
    return b;
}
inline Codes split(Bytes b) { return b; }
inline Codes load_codes(const char* p) { return load_bytes(p); }
inline void store_codes(char* p, Codes c) { std::memcpy(p, c.v, sizeof c.v); }
inline void store_s16(char* p, I a) {
    int16_t words[16];
    for (int i = 0; i < 16; i++) words[i] = static_cast<int16_t>(a.v[i]);
    std::memcpy(p, words, sizeof words);
}
inline Dots dot_s16(Dots sum, Codes w, const char* x) {
    int16_t four[4];
    std::memcpy(four, x, sizeof four);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) sum.v[i] += static_cast<int32_t>(w.v[4 * i + j]) * four[j];
    return sum;
}
inline Dots dot_s8(Dots sum, Bytes a, Bytes b, const char* x) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) {
            sum.v[i] += static_cast<int32_t>(a.v[4 * i + j]) * static_cast<int8_t>(x[j]);
            sum.v[i] += static_cast<int32_t>(b.v[4 * i + j]) * static_cast<int8_t>(x[4 + j]);
        }
    return sum;
}
constexpr int MOST_BITS_BY_BYTES = 8;
constexpr int TILE_ROWS = 3, TILE_PANELS = 1;  // twelve quarters of sums
constexpr int BLOCK_ROWS = 2, UNPACKED_ROWS = 2, MANY_ROWS = 16;

constexpr int BLOCK_QUERIES = 2, BLOCK_VECTORS = 2;  // the sums fit into the registers together with the operands

// Transposes words [0, num_words) of `num_rows` rows, at most 16 each: word w of row r goes to to[w * to_stride + r].
// `to` may be written in whole vectors: elements after the last row are undefined.
inline void transpose(const char* from, int64_t row_bytes, int num_rows, int num_words, int32_t* to, int to_stride) {
    for (int w = 0; w < num_words; w++)
        for (int r = 0; r < num_rows; r++) std::memcpy(to + w * to_stride + r, from + r * row_bytes + 4 * w, 4);
}

FORERUN_INLINE void prefetch(const void* p) {
#ifdef __GNUC__
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}
FORERUN_INLINE void prefetch_once(const void* p) {
#ifdef __GNUC__
    __builtin_prefetch(p, 0, 0);
#else
    (void)p;
#endif
}

#undef FORERUN_EACH

}  // namespace
}  // namespace forerun::simd
