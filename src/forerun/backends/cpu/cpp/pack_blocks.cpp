// Rows of ggml's blocks, as a GGUF file holds them, laid out for the kernels as blocks.h says.
#include <cstring>

#include "blocks.h"
#include "pack.h"

namespace forerun {
namespace {

constexpr int MOST_INPUTS = 256, MOST_GROUPS = 16;

// One block of one output: its codes as unsigned numbers, one to a byte; numbers of float16 as they are stored.
struct Fields {
    uint8_t codes[MOST_INPUTS];
    uint16_t scale, minimum;
    uint8_t scale_factors[MOST_GROUPS], minimum_factors[MOST_GROUPS];
};

uint16_t read_half(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// The 32 codes of Q4_0, Q4_1, Q5_0, Q5_1: low nibbles are the first 16; fifth bits lie in order, before the nibbles.
void read_small(const uint8_t* from, const BlockLayout& layout, Fields* out) {
    out->scale = read_half(from);
    if (layout.has_minima) out->minimum = read_half(from + 2);
    const uint8_t* high = from + (layout.has_minima ? 4 : 2);
    const uint8_t* low = high + (layout.bits == 5 ? 4 : 0);
    for (int i = 0; i < 32; i++) {
        const int four = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
        const int fifth = layout.bits == 5 ? high[i / 8] >> i % 8 & 1 : 0;
        out->codes[i] = static_cast<uint8_t>(four | fifth << 4);
    }
}

void read_q8_0(const uint8_t* from, Fields* out) {
    out->scale = read_half(from);
    for (int i = 0; i < 32; i++) out->codes[i] = from[2 + i] ^ 0x80;  // the int8 plus 128
}

// Q4_K and Q5_K: 6 bits of each group's two factors in 12 bytes. The minimum is taken away, so that its sign is turned.
void read_nested_with_minima(const uint8_t* from, const BlockLayout& layout, Fields* out) {
    out->scale = read_half(from);
    out->minimum = read_half(from + 2) ^ 0x8000;
    const uint8_t* factors = from + 4;
    for (int g = 0; g < 4; g++) {
        out->scale_factors[g] = factors[g] & 63;
        out->minimum_factors[g] = factors[g + 4] & 63;
        out->scale_factors[g + 4] = static_cast<uint8_t>((factors[g + 8] & 15) | factors[g] >> 6 << 4);
        out->minimum_factors[g + 4] = static_cast<uint8_t>(factors[g + 8] >> 4 | factors[g + 4] >> 6 << 4);
    }
    const uint8_t* high = from + 16;
    const uint8_t* low = high + (layout.bits == 5 ? 32 : 0);
    for (int i = 0; i < 256; i++) {
        const int byte = low[i / 64 * 32 + i % 32], fifth = layout.bits == 5 ? high[i % 32] >> i / 32 & 1 : 0;
        out->codes[i] = static_cast<uint8_t>((i % 64 < 32 ? byte & 15 : byte >> 4) | fifth << 4);
    }
}

void read_q6_k(const uint8_t* from, Fields* out) {
    const uint8_t *low = from, *high = from + 128;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, quarter = i % 128 / 32;
        const int byte = low[half * 64 + i % 64];
        const int above = high[half * 32 + i % 32] >> 2 * quarter & 3;
        out->codes[i] = static_cast<uint8_t>((quarter < 2 ? byte & 15 : byte >> 4) | above << 4);
    }
    std::memcpy(out->scale_factors, from + 192, 16);
    out->scale = read_half(from + 208);
}

void read_block(Format format, const BlockLayout& layout, const uint8_t* from, Fields* out) {
    switch (format) {
        case Format::q8_0: read_q8_0(from, out); break;
        case Format::q4_k:
        case Format::q5_k: read_nested_with_minima(from, layout, out); break;
        case Format::q6_k: read_q6_k(from, out); break;
        default: read_small(from, layout, out);
    }
}

void put_code(uint8_t* group, const BlockLayout& layout, int lane, int input, uint8_t code) {
    const int vector = input / 4, byte = lane * 4 + input % 4;
    if (layout.bits == 8) {
        group[vector * 64 + byte] = code;
        return;
    }
    group[vector / 2 * 64 + byte] |= static_cast<uint8_t>((code & 15) << vector % 2 * 4);
    const int above = layout.bits - 4;
    if (above) group[layout.group * 8 + byte] |= static_cast<uint8_t>(code >> 4 << vector * above);
}

// Block `block` of a record, counted by the file's blocks.
void put_block(uint8_t* record, const BlockLayout& layout, int lane, int block, const Fields& fields) {
    const int groups = layout.groups(), first_group = block * layout.file_inputs / layout.group;
    uint16_t* halves = reinterpret_cast<uint16_t*>(record);
    if (layout.is_nested) {
        const int parts = layout.has_minima ? 2 : 1;
        uint8_t* factors = record + parts * PANEL * 2 + lane;
        halves[lane] = fields.scale;
        if (layout.has_minima) halves[PANEL + lane] = fields.minimum;
        for (int g = 0; g < groups; g++) {
            factors[g * PANEL] = fields.scale_factors[g];
            if (layout.has_minima) factors[(groups + g) * PANEL] = fields.minimum_factors[g];
        }
    } else {
        halves[first_group * PANEL + lane] = fields.scale;
        if (layout.has_minima) halves[(groups + first_group) * PANEL + lane] = fields.minimum;
    }
    for (int i = 0; i < layout.file_inputs; i++) {
        uint8_t* group = record + layout.header_bytes() + (first_group + i / layout.group) * layout.group_bytes();
        put_code(group, layout, lane, i % layout.group, fields.codes[i]);
    }
}

}  // namespace

void pack_blocks(const Linear& linear, const uint8_t* rows) {
    const Format format = static_cast<Format>(linear.format);
    const BlockLayout& layout = layout_of(linear.format);
    const int num_blocks = linear.num_in / layout.file_inputs, blocks = layout.inputs / layout.file_inputs;
    const int64_t panel_bytes = static_cast<int64_t>(linear.padded_in / layout.inputs) * layout.record_bytes();
    uint8_t* panel_memory = static_cast<uint8_t*>(const_cast<void*>(linear.weights));
    for (int panel = 0; panel < num_panels(linear); panel++, panel_memory += panel_bytes) {
        std::memset(panel_memory, 0, static_cast<size_t>(panel_bytes));
        for (int lane = 0; lane < PANEL; lane++) {
            const int row = row_of(linear, panel, lane);
            if (row < 0) continue;
            const uint8_t* from = rows + static_cast<int64_t>(row) * num_blocks * layout.file_bytes;
            for (int block = 0; block < num_blocks; block++, from += layout.file_bytes) {
                Fields fields;
                read_block(format, layout, from, &fields);
                put_block(panel_memory + static_cast<int64_t>(block / blocks) * layout.record_bytes(), layout, lane,
                          block % blocks, fields);
            }
        }
    }
}

}  // namespace forerun
