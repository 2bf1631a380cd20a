// Sixteen lanes in four NEON registers (with the dot product of Arm v8.2). simd.h describes the functions.
//
// The dot product instruction multiplies bytes, so inputs of 16 bits are split into a rounded high and a signed low
// byte. Arm's dot product of bfloat16 rounds differently from other machines, so it is not used.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace forerun::simd {
namespace {

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
struct Bytes { uint8x16_t v[4]; };
struct Mask { uint32x4_t v[4]; };

#define FORERUN_EACH(Type, expression)           \
    Type r;                                      \
    FORERUN_UNROLL                               \
    for (int i = 0; i < 4; i++) r.v[i] = expression; \
    return r

inline F set1(float x) { FORERUN_EACH(F, vdupq_n_f32(x)); }
inline F zero() { return set1(0.0f); }
inline F load(const float* p) { FORERUN_EACH(F, vld1q_f32(p + 4 * i)); }
inline void store(float* p, F a) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
inline F load_n(const float* p, int n) {
    float all[16] = {};
    std::memcpy(all, p, sizeof(float) * static_cast<unsigned>(n));
    return load(all);
}
inline void store_n(float* p, F a, int n) {
    float all[16];
    store(all, a);
    std::memcpy(p, all, sizeof(float) * static_cast<unsigned>(n));
}
inline F add(F a, F b) { FORERUN_EACH(F, vaddq_f32(a.v[i], b.v[i])); }
inline F sub(F a, F b) { FORERUN_EACH(F, vsubq_f32(a.v[i], b.v[i])); }
inline F mul(F a, F b) { FORERUN_EACH(F, vmulq_f32(a.v[i], b.v[i])); }
inline F div(F a, F b) { FORERUN_EACH(F, vdivq_f32(a.v[i], b.v[i])); }
inline F max(F a, F b) { FORERUN_EACH(F, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
inline F min(F a, F b) { FORERUN_EACH(F, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
inline F fma(F a, F b, F c) { FORERUN_EACH(F, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }

inline I set1_int(int32_t x) { FORERUN_EACH(I, vdupq_n_s32(x)); }
inline I load_int(const int32_t* p) { FORERUN_EACH(I, vld1q_s32(p + 4 * i)); }
inline void store_int(int32_t* p, I a) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) vst1q_s32(p + 4 * i, a.v[i]);
}
inline I add_int(I a, I b) { FORERUN_EACH(I, vaddq_s32(a.v[i], b.v[i])); }
inline I sub_int(I a, I b) { FORERUN_EACH(I, vsubq_s32(a.v[i], b.v[i])); }
inline I mul_int(I a, I b) { FORERUN_EACH(I, vmulq_s32(a.v[i], b.v[i])); }
inline I and_int(I a, I b) { FORERUN_EACH(I, vandq_s32(a.v[i], b.v[i])); }
inline I or_int(I a, I b) { FORERUN_EACH(I, vorrq_s32(a.v[i], b.v[i])); }
inline I xor_int(I a, I b) { FORERUN_EACH(I, veorq_s32(a.v[i], b.v[i])); }
template <int N> inline I shift_left(I a) { FORERUN_EACH(I, vshlq_n_s32(a.v[i], N)); }
template <int N> inline I shift_right(I a) {
    FORERUN_EACH(I, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), N)));
}
inline I round_int(F a) { FORERUN_EACH(I, vcvtnq_s32_f32(a.v[i])); }
inline F to_float(I a) { FORERUN_EACH(F, vcvtq_f32_s32(a.v[i])); }
inline F from_bits(I a) { FORERUN_EACH(F, vreinterpretq_f32_s32(a.v[i])); }
inline I bits(F a) { FORERUN_EACH(I, vreinterpretq_s32_f32(a.v[i])); }
inline I load_u8_int(const uint8_t* p) {
    const uint8x16_t all = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
inline F load_u8(const uint8_t* p) { return to_float(load_u8_int(p)); }
inline F load_s8(const int8_t* p) {
    const int8x16_t all = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
    return to_float(I{{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
                       vmovl_s16(vget_high_s16(high))}});
}
inline F load_f16(const uint16_t* p) {
    FORERUN_EACH(F, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
inline int16x8_t narrowed(int32x4_t low, int32x4_t high) { return vcombine_s16(vqmovn_s32(low), vqmovn_s32(high)); }
inline void store_s8(int8_t* p, I a) {
    const int8x8_t low = vqmovn_s16(narrowed(a.v[0], a.v[1])), high = vqmovn_s16(narrowed(a.v[2], a.v[3]));
    vst1q_s8(p, vcombine_s8(low, high));
}

inline Mask less(F a, F b) { FORERUN_EACH(Mask, vcltq_f32(a.v[i], b.v[i])); }
inline Mask less_equal(F a, F b) { FORERUN_EACH(Mask, vcleq_f32(a.v[i], b.v[i])); }
inline F select(Mask m, F yes, F no) { FORERUN_EACH(F, vbslq_f32(m.v[i], yes.v[i], no.v[i])); }
inline I select_int(Mask m, I yes, I no) { FORERUN_EACH(I, vbslq_s32(m.v[i], yes.v[i], no.v[i])); }
inline uint32_t to_bits(Mask m) {
    const uint32_t places[4] = {1, 2, 4, 8};
    uint32_t all = 0;
    for (int i = 0; i < 4; i++) all |= vaddvq_u32(vandq_u32(m.v[i], vld1q_u32(places))) << 4 * i;
    return all;
}

inline float sum(F a) {
    const float32x4_t quarter = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t pair = vadd_f32(vget_low_f32(quarter), vget_high_f32(quarter));
    return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline float max_of(F a) {
    float all[16], most;
    store(all, a);
    most = all[0];
    for (int i = 1; i < 16; i++) most = all[i] > most ? all[i] : most;
    return most;
}

inline int32x4_t widened(uint16x4_t narrow) { return vreinterpretq_s32_u32(vshll_n_u16(narrow, 16)); }
inline F load_bf16(const uint16_t* p) { FORERUN_EACH(F, vreinterpretq_f32_s32(widened(vld1_u16(p + 4 * i)))); }
inline uint32x4_t round_bf16(float32x4_t a) {  // in the low half of each lane
    const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrq_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
}
inline void store_bf16(uint16_t* p, F a) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32(round_bf16(a.v[i])));
}
inline F load_bf16_n(const uint16_t* p, int n) {
    uint16_t all[16] = {};
    std::memcpy(all, p, sizeof(uint16_t) * static_cast<unsigned>(n));
    return load_bf16(all);
}
inline void store_bf16_n(uint16_t* p, F a, int n) {
    uint16_t all[16];
    store_bf16(all, a);
    std::memcpy(p, all, sizeof(uint16_t) * static_cast<unsigned>(n));
}
inline F compress(F a, uint32_t mask) {
    float all[16];
    store(all, a);
    for (int n = 0; mask; mask &= mask - 1) all[n++] = all[__builtin_ctz(mask)];
    return load(all);
}

inline Bytes load_bytes(const void* p) { FORERUN_EACH(Bytes, vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)); }
inline void store_bytes(char* p, Bytes b) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) vst1q_u8(reinterpret_cast<uint8_t*>(p) + 16 * i, b.v[i]);
}
inline Bytes low_nibbles(Bytes b) { FORERUN_EACH(Bytes, vandq_u8(b.v[i], vdupq_n_u8(15))); }
inline Bytes high_nibbles(Bytes b) { FORERUN_EACH(Bytes, vshrq_n_u8(b.v[i], 4)); }
template <int LEFT>
inline Bytes add_bits(Bytes a, Bytes b, int mask) {
    const uint8x16_t kept = vdupq_n_u8(static_cast<uint8_t>(mask));
    FORERUN_EACH(Bytes, vorrq_u8(a.v[i], vandq_u8(vshlq_u8(b.v[i], vdupq_n_s8(LEFT)), kept)));
}

template <int RIGHT>
inline Bytes two_bits(Bytes b) {
    FORERUN_EACH(Bytes, vandq_u8(vshlq_u8(b.v[i], vdupq_n_s8(-RIGHT)), vdupq_n_u8(3)));
}
inline uint8x16_t spread_four_words(const char* p) {
    uint16x4_t four;
    std::memcpy(&four, p, sizeof four);
    const uint32x4_t words = vmovl_u16(four);
    return vreinterpretq_u8_u32(vorrq_u32(words, vshlq_n_u32(words, 12)));
}
inline Bytes spread_words(const char* p) { FORERUN_EACH(Bytes, spread_four_words(p + 8 * i)); }
inline Bytes look_up(Bytes b, const uint8_t* table) { FORERUN_EACH(Bytes, vqtbl1q_u8(vld1q_u8(table), b.v[i])); }

constexpr bool HAS_BF16_DOT = false;
using Bf16Input = float;  // widened once, not for every weight
inline void store_bf16_inputs(Bf16Input* p, F a) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, vreinterpretq_f32_u32(vshlq_n_u32(round_bf16(a.v[i]), 16)));
}
inline F dot_bf16(F sum, Bytes w, const Bf16Input* pair) {
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32x4_t both = vreinterpretq_u32_u8(w.v[i]);
        const float32x4_t odd = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
        const float32x4_t odd_first = vfmaq_n_f32(sum.v[i], odd, pair[1]);
        sum.v[i] = vfmaq_n_f32(odd_first, vreinterpretq_f32_u32(vshlq_n_u32(both, 16)), pair[0]);
    }
    return sum;
}

struct Dots { int32x4_t low[4], high[4]; };  // products with the low and the high bytes of inputs
inline Dots to_dots(I a) {
    Dots d;
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) d.low[i] = a.v[i], d.high[i] = vdupq_n_s32(0);
    return d;
}
inline F to_float(Dots d) { FORERUN_EACH(F, vcvtq_f32_s32(vaddq_s32(d.low[i], vshlq_n_s32(d.high[i], 8)))); }
using Codes = Bytes;
constexpr bool SIGNED_CODES = true;
inline Bytes codes_of_8_bits(Bytes b) { FORERUN_EACH(Bytes, veorq_u8(b.v[i], vdupq_n_u8(0x80))); }
inline Codes split(Bytes b) { return b; }
inline Codes load_codes(const char* p) { return load_bytes(p); }
inline void store_codes(char* p, Codes c) { store_bytes(p, c); }
inline void store_s16(char* p, I a) {  // for every four inputs, the high bytes and then the low bytes
    int8_t high[16], low[16];
    I above, below;
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) {
        above.v[i] = vshrq_n_s32(vaddq_s32(a.v[i], vdupq_n_s32(128)), 8);
        below.v[i] = vsubq_s32(a.v[i], vshlq_n_s32(above.v[i], 8));
    }
    store_s8(high, above);
    store_s8(low, below);
    for (int i = 0; i < 4; i++) {
        std::memcpy(p + 8 * i, high + 4 * i, 4);
        std::memcpy(p + 8 * i + 4, low + 4 * i, 4);
    }
}
inline int8x16_t four(const char* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
inline Dots dot_s16(Dots sum, Codes w, const char* x) {
    const int8x16_t high = four(x), low = four(x + 4);
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) {
        const int8x16_t codes = vreinterpretq_s8_u8(w.v[i]);
        sum.high[i] = vdotq_s32(sum.high[i], codes, high);
        sum.low[i] = vdotq_s32(sum.low[i], codes, low);
    }
    return sum;
}
inline Dots dot_s8(Dots sum, Bytes a, Bytes b, const char* x) {
    const int8x16_t first = four(x), second = four(x + 4);
    FORERUN_UNROLL
    for (int i = 0; i < 4; i++) {
        sum.low[i] = vdotq_s32(sum.low[i], vreinterpretq_s8_u8(a.v[i]), first);
        sum.low[i] = vdotq_s32(sum.low[i], vreinterpretq_s8_u8(b.v[i]), second);
    }
    return sum;
}

constexpr int MOST_BITS_BY_BYTES = 8;
constexpr int TILE_ROWS = 4, TILE_PANELS = 1;  // sixteen quarters of sums in 32 registers
constexpr int BLOCK_ROWS = 3, UNPACKED_ROWS = 3, MANY_ROWS = 16;  // 24 quarters, high and low
constexpr int BLOCK_QUERIES = 6, BLOCK_VECTORS = 1;  // the sums fit into the registers together with the operands

// Transposes words [0, num_words) of `num_rows` rows, at most 16 each: word w of row r goes to to[w * to_stride + r].
inline void transpose(const char* from, int64_t row_bytes, int num_rows, int num_words, int32_t* to, int to_stride) {
    for (int w = 0; w < num_words; w++)
        for (int r = 0; r < num_rows; r++) std::memcpy(to + w * to_stride + r, from + r * row_bytes + 4 * w, 4);
}

FORERUN_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
FORERUN_INLINE void prefetch_once(const void* p) { __builtin_prefetch(p, 0, 0); }

#undef FORERUN_EACH

}  // namespace
}  // namespace forerun::simd
