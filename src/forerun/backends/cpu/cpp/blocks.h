// Memory layout of ggml's block formats in a panel.
//
// A panel is a sequence of records, one for every `inputs` inputs of its sixteen outputs. A record has a header with
// scales and minima, in the file's own precision, followed by its groups of codes:
//   header, plain    float16 scales [groups][16], float16 minima [groups][16] where the format has them
//   header, nested   float16 scales [16], minima [16]; 8-bit factors of the scales [groups][16], of the minima likewise
//   header, nibbles  the same, with 4-bit factors of scale and minimum in the low and the high half of a byte
//   header, powers   bytes e [groups][16]: scales 2^(e - 128)
//   codes, 8 bits    [group/4][16][4], one byte a code, the value plus 128 where it is signed
//   codes, 4 to 6    low four bits as in int4 (see kernels.h); then [16][4] bytes whose bits hold the fifth bits of
//                    inputs 4j..4j+3 at bit j, or the fifth and the sixth at bits 2j and 2j+1
//   codes, 2 and 3   of 16 inputs: [16][4] bytes, byte i with the low two bits of input 4j+i at bit 2j; then the third
//                    bits as words [16], that of input 4j+i at bit j, j+8, j+4 or j+12 for i = 0, 1, 2, 3
// A weight is scale * (code - offset) + minimum, or scale * TABLE[code]. These are the file's values; nothing is rounded
// again. In products the tables' values have `offset` added, so that they are unsigned as codes are.
#pragma once
#include "kernels.h"

namespace forerun {

enum class Scales { plain, nested, nibbles, powers };
enum class CodeTable { none, iq4, e2m1 };

// Values of the codes of IQ4_NL and IQ4_XS, and those of MXFP4: 4-bit floats, doubled.
constexpr int8_t IQ4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t E2M1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct BlockLayout {
    int inputs, group, bits, offset;  // inputs of a record and of a group; bits of a code
    bool has_minima;
    Scales scales;
    CodeTable codes;
    int file_inputs, file_bytes;  // of a block as a GGUF file has it

    constexpr bool is_nested() const { return scales == Scales::nested || scales == Scales::nibbles; }
    constexpr const int8_t* table() const {
        return codes == CodeTable::iq4 ? IQ4 : codes == CodeTable::e2m1 ? E2M1 : nullptr;
    }
    // Bits of what is multiplied: codes, or values of a table plus `offset`.
    constexpr int value_bits() const { return codes == CodeTable::iq4 ? 8 : codes == CodeTable::e2m1 ? 5 : bits; }
    // The largest weight of a group, without its scale and minimum.
    constexpr int most_value() const { return has_minima ? (1 << bits) - 1 : offset; }
    constexpr int groups() const { return inputs / group; }
    constexpr int group_bytes() const { return PANEL * group * bits / 8; }
    constexpr int used_header_bytes() const {
        const int parts = has_minima ? 2 : 1;
        if (scales == Scales::powers) return PANEL * groups();
        if (scales == Scales::nibbles) return PANEL * (2 * parts + groups());
        return is_nested() ? parts * PANEL * (2 + groups()) : parts * PANEL * 2 * groups();
    }
    constexpr int header_bytes() const { return (used_header_bytes() + 63) / 64 * 64; }
    constexpr int record_bytes() const { return header_bytes() + groups() * group_bytes(); }
};

#define FORERUN_LAYOUT_OF(name, ...) {__VA_ARGS__},
constexpr BlockLayout BLOCK_LAYOUTS[] = {FORERUN_BLOCK_FORMATS(FORERUN_LAYOUT_OF)};
#undef FORERUN_LAYOUT_OF

// Static because each tier compiles these with its own flags.
static constexpr bool is_blocks(int32_t format) { return format >= static_cast<int32_t>(Format::q4_0); }
static constexpr const BlockLayout& layout_of(int32_t format) {
    return BLOCK_LAYOUTS[format - static_cast<int32_t>(Format::q4_0)];
}

// Bytes of a group of one row's inputs: their scale (float), a term from their sum (see prepare.h), and the inputs as
// integers of `bits` bits: bytes in order, or 16 bits in the order of the instruction set's store_s16. With inputs
// rounded to 8 bits, logits of SmolLM2 in Q4_1 differ from those with float32 inputs by 5e-2 of their range; with 16
// bits, by 3e-4.
static constexpr int input_group_bytes(int group, int bits) { return 8 + group * bits / 8; }

}  // namespace forerun
