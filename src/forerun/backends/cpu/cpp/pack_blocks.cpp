// Packs rows of ggml's blocks from a GGUF file into the layout of blocks.h.
#include <cstring>

#include "blocks.h"
#include "pack.h"

namespace forerun {
namespace {

constexpr int MOST_INPUTS = 256, MOST_GROUPS = 16;

// One block of one output: unsigned codes, one per byte, and float16 numbers as stored.
struct Fields {
    uint8_t codes[MOST_INPUTS];
    uint16_t scale, minimum;
    uint8_t scale_factors[MOST_GROUPS], minimum_factors[MOST_GROUPS];
};

uint16_t read_half(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// Spreads the bits of a byte over eight bytes, the lowest first.
uint64_t spread(uint8_t bits) {
    const uint64_t each = bits * 0x0101010101010101u & 0x8040201008040201u;
    return (each + 0x7f7f7f7f7f7f7f7fu | each) >> 7 & 0x0101010101010101u;
}

// The 32 codes of Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: low nibbles are the first 16; fifth bits lie in order, before the nibbles.
template <Format FORMAT>
void read_small(const uint8_t* from, Fields* out) {
    constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    out->scale = read_half(from);
    if (LAYOUT.has_minima) out->minimum = read_half(from + 2);
    const uint8_t* high = from + (LAYOUT.has_minima ? 4 : 2);
    const uint8_t* low = high + (LAYOUT.bits == 5 ? 4 : 0);
    for (int i = 0; i < 16; i++) {
        out->codes[i] = low[i] & 15;
        out->codes[i + 16] = low[i] >> 4;
    }
    for (int i = 0; LAYOUT.bits == 5 && i < 4; i++) {
        uint64_t eight;
        std::memcpy(&eight, out->codes + i * 8, 8);
        eight |= spread(high[i]) << 4;
        std::memcpy(out->codes + i * 8, &eight, 8);
    }
}

void read_q8_0(const uint8_t* from, Fields* out) {
    out->scale = read_half(from);
    for (int i = 0; i < 32; i++) out->codes[i] = from[2 + i] ^ 0x80;  // the int8 plus 128
}

// Q4_K and Q5_K: each group's two factors have 6 bits, in 12 bytes. The file's minimum is subtracted, so it is negated.
template <bool HAS_FIFTH>
void read_nested_with_minima(const uint8_t* from, Fields* out) {
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
    const uint8_t* low = high + (HAS_FIFTH ? 32 : 0);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            const int nibble = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            out->codes[g * 32 + i] = static_cast<uint8_t>(nibble | (HAS_FIFTH ? (high[i] >> g & 1) << 4 : 0));
        }
}

void read_q6_k(const uint8_t* from, Fields* out) {
    const uint8_t *low = from, *high = from + 128;
    for (int g = 0; g < 8; g++)  // four quarters of each half
        for (int i = 0; i < 32; i++) {
            const int nibble = low[g / 4 * 64 + g % 2 * 32 + i] >> g % 4 / 2 * 4 & 15;
            const int above = high[g / 4 * 32 + i] >> g % 4 * 2 & 3;
            out->codes[g * 32 + i] = static_cast<uint8_t>(nibble | above << 4);
        }
    std::memcpy(out->scale_factors, from + 192, 16);
    out->scale = read_half(from + 208);
}

// Low two bits of codes, four to a byte, of each half of 128.
void read_pairs_of_bits(const uint8_t* from, Fields* out) {
    for (int i = 0; i < 256; i++) out->codes[i] = from[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

// Each byte has the factors of a group's scale and of its minimum, which is subtracted.
void read_q2_k(const uint8_t* from, Fields* out) {
    std::memcpy(out->scale_factors, from, 16);
    read_pairs_of_bits(from + 16, out);
    out->scale = read_half(from + 80);
    out->minimum = read_half(from + 82) ^ 0x8000;
}

// A group's factor has its low four bits in the first eight bytes and its high two in the last four.
void read_q3_k(const uint8_t* from, Fields* out) {
    read_pairs_of_bits(from + 32, out);
    for (int i = 0; i < 256; i++) out->codes[i] |= static_cast<uint8_t>((from[i % 32] >> i / 32 & 1) << 2);
    const uint8_t* factors = from + 96;
    for (int g = 0; g < 16; g++) {
        const int low = factors[g % 8] >> g / 8 * 4 & 15, high = factors[8 + g % 4] >> g / 4 * 2 & 3;
        out->scale_factors[g] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    out->scale = read_half(from + 108);
}

// Eight runs of 16 bytes with the codes of 32 inputs each; a group's factor has its high two bits before its low four.
void read_iq4_xs(const uint8_t* from, Fields* out) {
    out->scale = read_half(from);
    const int high = read_half(from + 2);
    for (int g = 0; g < 8; g++) {
        const int low = from[4 + g / 2] >> g % 2 * 4 & 15;
        out->scale_factors[g] = static_cast<uint8_t>((low | (high >> 2 * g & 3) << 4) - 32);
        for (int i = 0; i < 32; i++) out->codes[g * 32 + i] = from[8 + g * 16 + i % 16] >> i / 16 * 4 & 15;
    }
}

void read_mxfp4(const uint8_t* from, Fields* out) {
    out->scale_factors[0] = from[0];
    for (int i = 0; i < 32; i++) out->codes[i] = from[1 + i % 16] >> i / 16 * 4 & 15;
}

template <Format FORMAT>
void read_block(const uint8_t* from, Fields* out) {
    constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    if constexpr (FORMAT == Format::q8_0)
        read_q8_0(from, out);
    else if constexpr (FORMAT == Format::q6_k)
        read_q6_k(from, out);
    else if constexpr (FORMAT == Format::q2_k)
        read_q2_k(from, out);
    else if constexpr (FORMAT == Format::q3_k)
        read_q3_k(from, out);
    else if constexpr (FORMAT == Format::iq4_xs)
        read_iq4_xs(from, out);
    else if constexpr (FORMAT == Format::mxfp4)
        read_mxfp4(from, out);
    else if constexpr (LAYOUT.is_nested())
        read_nested_with_minima<LAYOUT.bits == 5>(from, out);
    else
        read_small<FORMAT>(from, out);
}

uint32_t four_codes(const uint8_t* codes) {
    uint32_t four;
    std::memcpy(&four, codes, 4);
    return four;
}

// Writes one output's codes of a group.
template <int GROUP, int BITS>
void put_codes(uint8_t* group, int lane, const uint8_t* codes) {
    uint8_t* out = group + lane * 4;
    if constexpr (BITS == 8) {
        for (int v = 0; v < GROUP / 4; v++) std::memcpy(out + v * 64, codes + v * 4, 4);
        return;
    }
    if constexpr (BITS < 4) {
        static_assert(GROUP == 16);
        uint32_t low = 0, third = 0;
        for (int v = 0; v < 4; v++) low |= (four_codes(codes + v * 4) & 0x03030303) << v * 2;
        std::memcpy(out, &low, 4);
        for (int i = 0; i < GROUP; i++) third |= (codes[i] >> 2 & 1u) << (i / 4 + i % 2 * 8 + i % 4 / 2 * 4);
        if (BITS == 3) std::memcpy(group + 64 + lane * 2, &third, 2);
        return;
    }
    constexpr uint32_t LOW = 0x0f0f0f0f, ABOVE = 0x01010101 * ((1 << (BITS > 4 ? BITS - 4 : 0)) - 1);
    uint32_t above = 0;
    for (int v = 0; v < GROUP / 4; v += 2) {
        const uint32_t first = four_codes(codes + v * 4), second = four_codes(codes + v * 4 + 4);
        const uint32_t nibbles = (first & LOW) | (second & LOW) << 4;
        std::memcpy(out + v / 2 * 64, &nibbles, 4);
        above |= (first >> 4 & ABOVE) << v * (BITS - 4) | (second >> 4 & ABOVE) << (v + 1) * (BITS - 4);
    }
    if (BITS > 4) std::memcpy(out + GROUP * 8, &above, 4);
}

// Packs block `block` of a record, in units of the file's blocks.
template <Format FORMAT>
void put_block(uint8_t* record, int lane, int block, const Fields& fields) {
    constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    constexpr int GROUPS = LAYOUT.groups(), FILE_GROUPS = LAYOUT.file_inputs / LAYOUT.group;
    const int first_group = block * FILE_GROUPS;
    uint16_t* halves = reinterpret_cast<uint16_t*>(record);
    if constexpr (LAYOUT.scales == Scales::powers) {
        for (int g = 0; g < FILE_GROUPS; g++) record[(first_group + g) * PANEL + lane] = fields.scale_factors[g];
    } else if constexpr (LAYOUT.is_nested()) {
        uint8_t* factors = record + (LAYOUT.has_minima ? 2 : 1) * PANEL * 2 + lane;
        halves[lane] = fields.scale;
        if (LAYOUT.has_minima) halves[PANEL + lane] = fields.minimum;
        for (int g = 0; g < GROUPS; g++) {
            factors[g * PANEL] = fields.scale_factors[g];
            if (LAYOUT.has_minima && LAYOUT.scales == Scales::nested)
                factors[(GROUPS + g) * PANEL] = fields.minimum_factors[g];
        }
    } else {
        halves[first_group * PANEL + lane] = fields.scale;
        if (LAYOUT.has_minima) halves[(GROUPS + first_group) * PANEL + lane] = fields.minimum;
    }
    uint8_t* group = record + LAYOUT.header_bytes() + first_group * LAYOUT.group_bytes();
    for (int g = 0; g < FILE_GROUPS; g++, group += LAYOUT.group_bytes())
        put_codes<LAYOUT.group, LAYOUT.bits>(group, lane, fields.codes + g * LAYOUT.group);
}

template <Format FORMAT>
void pack_panel(uint8_t* panel, int num_blocks, int num_records, const uint8_t* const rows[PANEL]) {
    constexpr BlockLayout LAYOUT = layout_of(static_cast<int32_t>(FORMAT));
    constexpr int BLOCKS = LAYOUT.inputs / LAYOUT.file_inputs;
    constexpr int USED = LAYOUT.used_header_bytes();
    bool is_full = num_blocks == num_records * BLOCKS;
    for (int lane = 0; lane < PANEL; lane++) is_full = is_full && rows[lane];
    if (!is_full) std::memset(panel, 0, static_cast<size_t>(num_records) * LAYOUT.record_bytes());
    for (int block = 0; block < num_blocks; block++) {
        uint8_t* record = panel + static_cast<int64_t>(block / BLOCKS) * LAYOUT.record_bytes();
        std::memset(record + USED, 0, LAYOUT.header_bytes() - USED);
        for (int lane = 0; lane < PANEL; lane++) {
            if (!rows[lane]) continue;
            Fields fields;
            read_block<FORMAT>(rows[lane] + static_cast<int64_t>(block) * LAYOUT.file_bytes, &fields);
            put_block<FORMAT>(record, lane, block % BLOCKS, fields);
        }
    }
}

using PackPanel = void (*)(uint8_t*, int, int, const uint8_t* const*);
#define FORERUN_PACK_PANEL_OF(name, ...) pack_panel<Format::name>,
constexpr PackPanel PACK_PANEL[] = {FORERUN_BLOCK_FORMATS(FORERUN_PACK_PANEL_OF)};
#undef FORERUN_PACK_PANEL_OF

}  // namespace

int64_t block_row_bytes(const Linear& linear) {
    const BlockLayout& layout = layout_of(linear.format);
    return static_cast<int64_t>(linear.num_in / layout.file_inputs) * layout.file_bytes;
}

int64_t block_panel_bytes(const Linear& linear) {
    const BlockLayout& layout = layout_of(linear.format);
    return static_cast<int64_t>(linear.padded_in / layout.inputs) * layout.record_bytes();
}

void pack_blocks(const Linear& linear, uint8_t* panel, const uint8_t* const rows[PANEL]) {
    const BlockLayout& layout = layout_of(linear.format);
    PACK_PANEL[linear.format - static_cast<int32_t>(Format::q4_0)](panel, linear.num_in / layout.file_inputs,
                                                                   linear.padded_in / layout.inputs, rows);
}

}  // namespace forerun
