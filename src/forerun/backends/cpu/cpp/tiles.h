// A tile: the products of R rows with P panels over a range of inputs, added to sums in memory.
//
// Every output has one accumulator, which adds its inputs in ascending order. So the result does not depend on R, on P
// or on how the inputs are divided into ranges: storing a float32 between two ranges changes no bit. The sums of a tile
// fit into the registers, so that each load of weights is used for R rows.
//
// The tiles of all formats and numbers of rows are most of what is compiled. So they are compiled in parts: tiles_plain.cpp
// once for each instruction set, tiles_blocks.cpp once for some block formats each.
#pragma once
#include "blocks.h"
#include "kernels.h"
#include "simd.h"

namespace forerun::FORERUN_TIER {

constexpr int LINE_BYTES = 64;
constexpr int PAIR = 2;  // panels that are multiplied at a time
constexpr int SUMS_STRIDE = PAIR * PANEL;  // of two rows' sums

using simd::TILE_PANELS;
using simd::TILE_ROWS;

// Inputs and sums of a tile. Pointers are to the first row, the first panel and the first input.
struct Stretch {
    const char* weights;
    int64_t panel_bytes;
    const char* inputs;
    int64_t row_bytes;
    int num_steps;
    bool streams;       // prefetch into the L1 cache only
    const char* ahead;  // the next weights to prefetch; each line advances by `ahead_step` bytes
    int64_t ahead_step;
    float* sums;  // [R][sums_stride], with adjacent panels
    int64_t sums_stride;

    // For int8 and int4: groups have `group_steps` steps. Scales and zeros of panels are panel_groups * PANEL apart.
    const float* input_scales;
    const int32_t* input_sums;
    int64_t row_groups;
    const float* scales;
    const uint8_t* zeros;
    int64_t panel_groups;
    int group_steps;

    int64_t group_stride;  // for blocks: bytes between consecutive groups of a row's inputs
};

// The tiles of a format, of up to `max_rows` rows and TILE_PANELS panels. A step of a panel has `inputs` inputs in
// `step_bytes` bytes; one input takes `input_bytes` bytes if a row's inputs are contiguous.
struct Tiles {
    void (*run[TILE_ROWS])(const Stretch&);
    int max_rows, inputs, input_bytes, step_bytes;
    bool by_groups;
    void (*run_many)(const Stretch&, int num_rows);  // of blocks, for any number of rows; or null
    void (*run_by_unit)(const Stretch&, int num_rows);  // the same by the matrix unit, or null
};

// Storage of a row's inputs for a block format: bytes if they have 8 bits and this is faster with the instruction set.
static constexpr bool are_bytes(const BlockLayout& layout, int input_bits) {
    return input_bits == 8 && layout.value_bits() <= simd::MOST_BITS_BY_BYTES;
}

const Tiles& plain_tiles(Format format);  // of a format that is not a block format
#define FORERUN_TILES_OF(name, ...) const Tiles& tiles_of_##name(int input_bits);
FORERUN_BLOCK_FORMATS(FORERUN_TILES_OF)
#undef FORERUN_TILES_OF

}  // namespace forerun::FORERUN_TIER
