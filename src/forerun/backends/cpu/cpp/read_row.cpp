// Reads one row of a packed weight, for an embedding that is tied to the head.
#include <cmath>
#include <cstring>

#include "blocks.h"
#include "pack.h"

namespace forerun {
namespace {

float from_half(const uint8_t* from) {
    const int bits = from[0] | from[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                                      : std::ldexp(static_cast<float>(fraction), -24);
    return bits >> 15 ? -size : size;
}

int code_of(const uint8_t* group, const BlockLayout& layout, int lane, int input) {
    const int vector = input / 4, byte = lane * 4 + input % 4;
    if (layout.bits == 8) return group[vector * 64 + byte];
    if (layout.bits < 4) {
        const int low = group[byte] >> vector * 2 & 3, word = 64 + lane * 2 + input % 2;
        return layout.bits == 2 ? low : low | (group[word] >> (vector + input % 4 / 2 * 4) & 1) << 2;
    }
    const int low = group[vector / 2 * 64 + byte] >> vector % 2 * 4 & 15, above = layout.bits - 4;
    if (!above) return low;
    return low | (group[layout.group * 8 + byte] >> vector * above & ((1 << above) - 1)) << 4;
}

// One output's scale and minimum (or 0) of a group.
struct Factors {
    float scale, minimum;

    Factors(const uint8_t* record, const BlockLayout& layout, int lane, int group) {
        const int groups = layout.groups(), half = 2 * PANEL;
        minimum = 0.0f;
        if (layout.scales == Scales::powers) {
            scale = std::ldexp(1.0f, record[group * PANEL + lane] - 128);
        } else if (layout.scales == Scales::nibbles) {
            const uint8_t both = record[2 * half + group * PANEL + lane];
            scale = from_half(record + lane * 2) * static_cast<float>(both & 15);
            minimum = from_half(record + half + lane * 2) * static_cast<float>(both >> 4);
        } else if (!layout.is_nested()) {
            scale = from_half(record + group * half + lane * 2);
            if (layout.has_minima) minimum = from_half(record + (groups + group) * half + lane * 2);
        } else if (layout.has_minima) {
            const uint8_t* factors = record + 2 * half + group * PANEL + lane;
            scale = from_half(record + lane * 2) * factors[0];
            minimum = from_half(record + half + lane * 2) * factors[groups * PANEL];
        } else {
            scale = from_half(record + lane * 2) * static_cast<int8_t>(record[half + group * PANEL + lane]);
        }
    }
};

void read_blocks(const Linear& linear, const uint8_t* panel, int lane, float* out) {
    const BlockLayout& layout = layout_of(linear.format);
    for (int k = 0; k < linear.num_in; k += layout.group) {
        const uint8_t* record = panel + static_cast<int64_t>(k / layout.inputs) * layout.record_bytes();
        const int group = k % layout.inputs / layout.group;
        const Factors factors(record, layout, lane, group);
        const uint8_t* codes = record + layout.header_bytes() + group * layout.group_bytes();
        for (int i = 0; i < layout.group; i++) {
            const int code = code_of(codes, layout, lane, i);
            const int value = layout.table() ? layout.table()[code] : code - layout.offset;
            out[k + i] = factors.scale * static_cast<float>(value) + factors.minimum;
        }
    }
}

}  // namespace

void read_row(const Linear& linear, int64_t row, float* out) {
    const int64_t panel = row / PANEL;
    const int lane = static_cast<int>(row % PANEL);
    if (is_blocks(linear.format)) {
        const BlockLayout& layout = layout_of(linear.format);
        const int64_t panel_bytes = static_cast<int64_t>(linear.padded_in / layout.inputs) * layout.record_bytes();
        read_blocks(linear, static_cast<const uint8_t*>(linear.weights) + panel * panel_bytes, lane, out);
    } else if (linear.format == static_cast<int32_t>(Format::f32)) {
        const float* from = static_cast<const float*>(linear.weights) + panel * linear.padded_in * PANEL + lane;
        for (int k = 0; k < linear.num_in; k++) out[k] = from[k * PANEL];
    } else {
        const uint16_t* from = static_cast<const uint16_t*>(linear.weights) + panel * linear.padded_in * PANEL;
        for (int k = 0; k < linear.num_in; k++) {
            const uint32_t bits = static_cast<uint32_t>(from[(k / 2 * PANEL + lane) * 2 + k % 2]) << 16;
            std::memcpy(out + k, &bits, 4);
        }
    }
}

}  // namespace forerun
