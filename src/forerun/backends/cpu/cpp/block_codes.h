// The codes and scales of block formats as the instructions take them, read from their layout (blocks.h).
#pragma once
#include "tiles.h"

namespace forerun::FORERUN_TIER {
namespace {

// A table's values as the dots take them: plus `offset`, or signed bytes.
struct Table {
    alignas(16) uint8_t values[16];

    constexpr Table(const int8_t* signed_values, int offset) : values{} {
        for (int i = 0; i < 16; i++) values[i] = static_cast<uint8_t>(signed_values[i] + offset);
    }
};

template <Format FORMAT>
struct Block {
    static constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    static constexpr int GROUP = LAYOUT.group, GROUPS = LAYOUT.groups(), VECTORS = GROUP / 4, BITS = LAYOUT.bits;
    static constexpr int HEADER_BYTES = LAYOUT.header_bytes(), GROUP_BYTES = LAYOUT.group_bytes();
    static constexpr int RECORD_BYTES = LAYOUT.record_bytes();
    static constexpr bool HAS_MINIMA = LAYOUT.has_minima;
    static constexpr bool IS_SIGNED = LAYOUT.value_bits() == 8 && simd::SIGNED_CODES;
    static constexpr bool HAS_OFFSET = !HAS_MINIMA && !IS_SIGNED;

    // Scales and minima of the current group, and those of the whole record from which they are computed.
    simd::F scale, minimum, record_scale, record_minimum;

    void take_record(const char* record) {
        if constexpr (LAYOUT.is_nested()) {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(record);
            record_scale = simd::load_f16(halves);
            if constexpr (HAS_MINIMA) record_minimum = simd::load_f16(halves + PANEL);
        }
    }

    void take_group(const char* record, int group) {
        if constexpr (LAYOUT.scales == Scales::powers) {  // 2^(e - 127), or 2^-127 for e = 0, halved; 2^127 for e = 255
            const uint8_t* exponents = reinterpret_cast<const uint8_t*>(record) + group * PANEL;
            const simd::F doubled = simd::from_bits(simd::shift_left<23>(simd::load_u8_int(exponents)));
            const simd::F halved = simd::mul(simd::max(doubled, simd::set1(0x1p-127f)), simd::set1(0.5f));
            scale = simd::min(halved, simd::set1(0x1p127f));
        } else if constexpr (LAYOUT.is_nested()) {
            const char* factors = record + PANEL * 2 * (HAS_MINIMA ? 2 : 1) + group * PANEL;
            if constexpr (LAYOUT.scales == Scales::nibbles) {
                const simd::I both = simd::load_u8_int(reinterpret_cast<const uint8_t*>(factors));
                scale = simd::mul(record_scale, simd::to_float(simd::and_int(both, simd::set1_int(15))));
                minimum = simd::mul(record_minimum, simd::to_float(simd::shift_right<4>(both)));
            } else if constexpr (!HAS_MINIMA) {  // signed factors
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

    // Codes of the V-th four inputs of a group for all sixteen outputs; and what the dots multiply in their place.
    template <int V>
    static simd::Bytes bytes(const char* packed) {
        if constexpr (BITS == 8) return simd::codes_of_8_bits(plain_codes<V>(packed));
        if constexpr (LAYOUT.table() != nullptr) {
            static constexpr Table TABLE(LAYOUT.table(), IS_SIGNED ? 0 : LAYOUT.offset);
            return simd::look_up(plain_codes<V>(packed), TABLE.values);
        }
        return plain_codes<V>(packed);
    }
    // What a code stands for, without scale and minimum.
    static constexpr int value_of(int code) {
        if (LAYOUT.table()) return LAYOUT.table()[code];
        return HAS_MINIMA ? code : code - LAYOUT.offset;
    }
    template <int V>
    static simd::Bytes plain_codes(const char* packed) {
        if constexpr (BITS == 8) {
            return simd::load_bytes(packed + V * 64);
        } else if constexpr (BITS < 4) {
            const simd::Bytes low = simd::two_bits<2 * V>(simd::load_bytes(packed));
            if constexpr (BITS == 2) return low;
            return simd::add_bits<2 - V>(low, simd::spread_words(packed + 64), 4);
        } else {
            return four_bits_or_more<V>(packed);
        }
    }
    template <int V>
    static simd::Bytes four_bits_or_more(const char* packed) {
        const simd::Bytes both = simd::load_bytes(packed + V / 2 * 64);
        const simd::Bytes low = V % 2 ? simd::high_nibbles(both) : simd::low_nibbles(both);
        if constexpr (BITS == 4) return low;
        constexpr int NUM_BITS = BITS - 4, MASK = ((1 << NUM_BITS) - 1) << 4;
        return simd::add_bits<4 - V * NUM_BITS>(low, simd::load_bytes(packed + VECTORS * 32), MASK);
    }
    template <int V>
    static simd::Codes codes(const char* packed) {
        return simd::split(bytes<V>(packed));
    }
};

// Prefetches a group's part of the lines that follow, and returns where the next are. All lines of a record at once would be
// more than can be on their way. simd::prefetch has to be inlined by force: GCC would find that it changes nothing and drop
// its calls.
template <class B, int P>
FORERUN_INLINE const char* prefetch_group(const Stretch& s, int group, const char* ahead) {
    constexpr int LINES = B::LAYOUT.record_bytes() / LINE_BYTES;
    const int num_lines = (group + 1) * LINES / B::GROUPS - group * LINES / B::GROUPS;
    const int64_t panel_bytes = s.panel_bytes, step = s.ahead_step;
    const bool streams = s.streams;
    for (int line = 0; line < num_lines; line++, ahead += step) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++)
            streams ? simd::prefetch_once(ahead + p * panel_bytes) : simd::prefetch(ahead + p * panel_bytes);
    }
    return ahead;
}

}  // namespace
}  // namespace forerun::FORERUN_TIER
