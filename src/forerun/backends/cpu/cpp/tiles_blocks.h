// A tile of a block format: the products of R rows with P panels over some records, added to sums in memory.
//
// A row's inputs are whole numbers of 16 bits by groups, in two planes of bytes: a group's products are exact sums of
// integers, first with the high bytes, then, times 256, with the low ones. Only their scaling rounds, once to a group and in
// the order of the groups.
#pragma once
#include "blocks.h"
#include "simd.h"
#include "tiles.h"

namespace forerun {
namespace {

template <Format FORMAT>
struct Block {
    static constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    static constexpr int GROUP = LAYOUT.group, GROUPS = LAYOUT.groups(), VECTORS = GROUP / 4;
    static constexpr int BITS = LAYOUT.bits, LINES = LAYOUT.record_bytes() / 64;
    static constexpr bool HAS_MINIMA = LAYOUT.has_minima;

    // Scales and minima of the group at hand, and those of the whole record that they are made of.
    simd::F scale, minimum, record_scale, record_minimum;

    void take_record(const char* record) {
        if constexpr (LAYOUT.is_nested) {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(record);
            record_scale = simd::load_f16(halves);
            if constexpr (HAS_MINIMA) record_minimum = simd::load_f16(halves + PANEL);
        }
    }

    void take_group(const char* record, int group) {
        if constexpr (LAYOUT.is_nested) {
            const char* factors = record + PANEL * 2 * (HAS_MINIMA ? 2 : 1) + group * PANEL;
            if constexpr (!HAS_MINIMA) {  // Q6_K: its factors are signed
                scale = simd::mul(record_scale, simd::load_s8(reinterpret_cast<const int8_t*>(factors)));
            } else {
                const uint8_t* unsigned_factors = reinterpret_cast<const uint8_t*>(factors);
                scale = simd::mul(record_scale, simd::load_u8(unsigned_factors));
                minimum = simd::mul(record_minimum, simd::load_u8(unsigned_factors + GROUPS * PANEL));
            }
        } else {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(record) + group * PANEL;
            scale = simd::load_f16(halves);
            if constexpr (HAS_MINIMA) minimum = simd::load_f16(halves + GROUPS * PANEL);
        }
    }

    // Codes of the V-th four inputs of a group, of all sixteen outputs.
    template <int V>
    static simd::Bytes codes(const char* packed) {
        if constexpr (BITS == 8) return simd::load_bytes(packed + V * 64);
        const simd::Bytes both = simd::load_bytes(packed + V / 2 * 64);
        const simd::Bytes low = V % 2 ? simd::high_nibbles(both) : simd::low_nibbles(both);
        if constexpr (BITS == 4) return low;
        constexpr int NUM_BITS = BITS - 4, MASK = ((1 << NUM_BITS) - 1) << 4;
        return simd::add_bits<4 - V * NUM_BITS>(low, simd::load_bytes(packed + VECTORS * 32), MASK);
    }
};

// Adds the products of one plane of R rows' bytes, from x on, with P panels' codes.
template <class Block, int R, int P, int V = 0>
FORERUN_INLINE void add_plane(simd::Dots (&totals)[R][P], const char* packed, int64_t panel_bytes, const char* x) {
    if constexpr (V < Block::VECTORS) {
        simd::Bytes codes[P];
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) codes[p] = Block::template codes<V>(packed + p * panel_bytes);
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            const char* four = x + r * input_group_bytes(Block::GROUP) + 4 * V;
            FORERUN_UNROLL
            for (int p = 0; p < P; p++)
                totals[r][p] = simd::dot_u8_s8(totals[r][p], codes[p], reinterpret_cast<const int8_t*>(four));
        }
        add_plane<Block, R, P, V + 1>(totals, packed, panel_bytes, x);
    }
}

// Adds the products of R rows' groups of inputs, from x on, with P panels' codes to sums.
template <class Block, int R, int P>
FORERUN_INLINE void multiply_group(const Block* blocks, const char* packed, int64_t panel_bytes, const char* x, float* sums,
                    int64_t sums_stride) {
    constexpr int ROW = input_group_bytes(Block::GROUP);
    simd::Dots totals[R][P];
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) totals[r][p] = simd::to_dots(simd::set1_int(0));
    }
    add_plane<Block>(totals, packed, panel_bytes, x + 8);
    packed = simd::anew(packed);  // codes are made twice: there are not registers enough to keep them
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        const simd::I start = simd::set1_int(*reinterpret_cast<const int32_t*>(x + r * ROW + 4));
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) {
            totals[r][p] = simd::times_256(totals[r][p]);
            if constexpr (!Block::HAS_MINIMA) totals[r][p] = simd::add_dots(totals[r][p], start);
        }
    }
    add_plane<Block>(totals, packed, panel_bytes, x + 8 + Block::GROUP);
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        const float* factors = reinterpret_cast<const float*>(x + r * ROW);
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) {
            float* at = sums + r * sums_stride + p * PANEL;
            const simd::F factor = simd::mul(blocks[p].scale, simd::set1(factors[0]));
            simd::F sum = simd::fma(simd::to_float(totals[r][p]), factor, simd::load(at));
            if constexpr (Block::HAS_MINIMA) sum = simd::fma(blocks[p].minimum, simd::set1(factors[1]), sum);
            simd::store(at, sum);
        }
    }
}

template <class Block, int R, int P>
void multiply_blocks(const Stretch& s) {
    const char *record = s.weights, *x = s.inputs, *ahead = s.ahead;
    const int64_t panel_bytes = s.panel_bytes, group_stride = s.group_stride, ahead_step = s.ahead_step;
    const bool streams = s.streams;
    for (int step = 0; step < s.num_steps; step++) {
        Block blocks[P];
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) blocks[p].take_record(record + p * panel_bytes);
        const char* packed = record + Block::LAYOUT.header_bytes();
        for (int group = 0; group < Block::GROUPS; group++) {
            const int num_lines = (group + 1) * Block::LINES / Block::GROUPS - group * Block::LINES / Block::GROUPS;
            for (int line = 0; line < num_lines; line++, ahead += ahead_step) {
                FORERUN_UNROLL
                for (int p = 0; p < P; p++)
                    streams ? simd::prefetch_once(ahead + p * panel_bytes) : simd::prefetch(ahead + p * panel_bytes);
            }
            FORERUN_UNROLL
            for (int p = 0; p < P; p++) blocks[p].take_group(record + p * panel_bytes, group);
            multiply_group<Block, R, P>(blocks, packed, panel_bytes, x, s.sums, s.sums_stride);
            packed += Block::LAYOUT.group_bytes();
            x += group_stride;
        }
        record += Block::LAYOUT.record_bytes();
    }
}

}  // namespace
}  // namespace forerun
