// Memory layout of ggml's block formats in a panel.
//
// A panel is a sequence of records, one for every `inputs` inputs of its sixteen outputs. A record has a header with
// scales and minima, in the file's own precision, followed by its groups of codes:
//   header, plain    float16 scales [groups][16], float16 minima [groups][16] where the format has them
//   header, nested   float16 scales [16], minima [16]; 8-bit factors of the scales [groups][16], of the minima likewise
//   codes, 8 bits    [group/4][16][4], one byte a code, the value plus 128 where it is signed
//   codes, fewer     low four bits as in int4 (see kernels.h); then [16][4] bytes whose bits hold the fifth bits of
//                    inputs 4j..4j+3 at bit j, or the fifth and the sixth at bits 2j and 2j+1
// A weight is scale * (code - offset) + minimum. These are the file's values; nothing is rounded again.
#pragma once
#include "kernels.h"

namespace forerun {

struct BlockLayout {
    int inputs, group, bits, offset;  // inputs of a record and of a group; bits of a code
    bool has_minima, is_nested;
    int file_inputs, file_bytes;  // of a block as a GGUF file has it

    constexpr int groups() const { return inputs / group; }
    constexpr int group_bytes() const { return PANEL * group * bits / 8; }
    constexpr int used_header_bytes() const {
        const int parts = has_minima ? 2 : 1;
        return is_nested ? parts * PANEL * (2 + groups()) : parts * PANEL * 2 * groups();
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
