// A tile of a block format: the products of R rows with one panel over some records, added to sums in memory.
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

    explicit Block(const char* record) {
        if constexpr (!LAYOUT.is_nested) return;
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(record);
        record_scale = simd::load_f16(halves);
        if constexpr (HAS_MINIMA) record_minimum = simd::load_f16(halves + PANEL);
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

    template <int V>
    static void add_high_bits(simd::Bytes high, simd::Bytes* codes) {
        if constexpr (V < VECTORS) {
            constexpr int NUM_BITS = BITS - 4;
            codes[V] = simd::add_bits<4 - V * NUM_BITS>(codes[V], high, ((1 << NUM_BITS) - 1) << 4);
            add_high_bits<V + 1>(high, codes);
        }
    }

    // Codes of one group, four inputs of sixteen outputs in each vector.
    static void unpack(const char* packed, simd::Bytes* codes) {
        if constexpr (BITS == 8) {
            FORERUN_UNROLL
            for (int v = 0; v < VECTORS; v++) codes[v] = simd::load_bytes(packed + v * 64);
            return;
        }
        FORERUN_UNROLL
        for (int v = 0; v < VECTORS; v += 2) {
            const simd::Bytes both = simd::load_bytes(packed + v * 32);
            codes[v] = simd::low_nibbles(both);
            codes[v + 1] = simd::high_nibbles(both);
        }
        if constexpr (BITS > 4) add_high_bits<0>(simd::load_bytes(packed + VECTORS * 32), codes);
    }
};

// What one row's group of inputs adds to its sum: x points at the group, see blocks.h.
template <class Block>
simd::F add_group(simd::F sum, simd::Dots total, const Block& block, const char* x) {
    const simd::F input_scale = simd::set1(*reinterpret_cast<const float*>(x));
    sum = simd::fma(simd::to_float(total), simd::mul(block.scale, input_scale), sum);
    if constexpr (Block::HAS_MINIMA)
        sum = simd::fma(block.minimum, simd::set1(*reinterpret_cast<const float*>(x + 4)), sum);
    return sum;
}

template <class Block, int R>
void add_dots(simd::Dots* totals, const simd::Bytes* codes, const char* x) {
    FORERUN_UNROLL
    for (int v = 0; v < Block::VECTORS; v++) {
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            const char* four = x + r * input_group_bytes(Block::GROUP) + 4 * v;
            totals[r] = simd::dot_u8_s8(totals[r], codes[v], reinterpret_cast<const int8_t*>(four));
        }
    }
}

template <class Block, int R>
void multiply_group(const Block& block, const simd::Bytes* codes, const char* x, simd::F* sums) {
    constexpr int ROW = input_group_bytes(Block::GROUP);
    simd::Dots totals[R];
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) totals[r] = simd::to_dots(simd::set1_int(0));
    add_dots<Block, R>(totals, codes, x + 8);
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) totals[r] = simd::times_256(totals[r]);
    if constexpr (!Block::HAS_MINIMA) {
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            const int32_t* start = reinterpret_cast<const int32_t*>(x + r * ROW + 4);
            totals[r] = simd::add_dots(totals[r], simd::set1_int(*start));
        }
    }
    add_dots<Block, R>(totals, codes, x + 8 + Block::GROUP);
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) sums[r] = add_group(sums[r], totals[r], block, x + r * ROW);
}

template <class Block, int R>
void multiply_blocks(const Stretch& s) {
    simd::F sums[R];
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) sums[r] = simd::load(s.sums + r * s.sums_stride);
    const char *record = s.weights, *x = s.inputs, *ahead = s.ahead;
    const int64_t group_stride = s.group_stride, ahead_step = s.ahead_step;
    const bool streams = s.streams;
    for (int step = 0; step < s.num_steps; step++) {
        Block block(record);
        const char* packed = record + Block::LAYOUT.header_bytes();
        for (int group = 0; group < Block::GROUPS; group++) {
            const int num_lines = (group + 1) * Block::LINES / Block::GROUPS - group * Block::LINES / Block::GROUPS;
            for (int line = 0; line < num_lines; line++, ahead += ahead_step)
                streams ? simd::prefetch_once(ahead) : simd::prefetch(ahead);
            block.take_group(record, group);
            simd::Bytes codes[Block::VECTORS];
            Block::unpack(packed, codes);
            multiply_group<Block, R>(block, codes, x, sums);
            packed += Block::LAYOUT.group_bytes();
            x += group_stride;
        }
        record += Block::LAYOUT.record_bytes();
    }
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) simd::store(s.sums + r * s.sums_stride, sums[r]);
}

}  // namespace
}  // namespace forerun
