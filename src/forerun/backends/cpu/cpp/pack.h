// Weights laid out for the kernels, see kernels.h.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace forerun {

// A weight [num_out][num_in] as Python has it: float, bfloat16, int8 (scales [num_out]) or, for int4, uint8 of 0..15
// (scales and zeros [num_out][num_in / group]); bias [num_out] or null. Of ggml's formats `values` are rows of blocks.
//
// Or they are still in a file, open as descriptor `file`: row r begins at byte places[r], and is zeros where that is
// negative. Each thread then reads the rows of the panel that it fills, so that no second copy is ever whole.
struct Source {
    const void* values;
    const float* scales;
    const uint8_t* zeros;
    const float* bias;
    const int64_t* places;  // [num_out], or null
    int32_t file;
};

// Bytes on cache lines of their own, on huge pages where there are many; null if there is no memory.
void* allocate(int64_t bytes);

// The row of the weight that is output `lane` of a panel, or -1 behind the last.
int row_of(const Linear& linear, int panel, int lane);

// Bytes of a row of blocks as a GGUF file has it.
int64_t block_row_bytes(const Linear& linear);

// Bytes of a packed panel of a block format.
int64_t block_panel_bytes(const Linear& linear);

// Fills the memory of a panel of a block format from rows of ggml's blocks, a null one being no row.
void pack_blocks(const Linear& linear, uint8_t* panel, const uint8_t* const rows[PANEL]);

// Row `row` of a packed weight of floats or blocks, as floats [num_in]; the weight is not paired.
void read_row(const Linear& linear, int64_t row, float* out);

// Points a weight whose format, num_out, num_in, paired and, for int4, group are set at memory where it is packed or will
// be, and sets the rest. Returns the bytes it takes. All of it is one piece, which begins at `weights`.
int64_t place(Linear& linear, char* memory, bool has_bias);

// Packs such a weight. Returns the bytes it takes, 0 if there is no memory, or -1 if the file with its rows cannot be
// read.
int64_t pack(Linear& linear, const Source& source, int num_threads);

}  // namespace forerun
