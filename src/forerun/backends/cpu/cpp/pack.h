// Packs weights into the layout of the kernels, see kernels.h.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace forerun {

// A weight [num_out][num_in] from Python: float, bfloat16, int8 (scales [num_out]) or, for int4, uint8 of 0..15 (scales
// and zeros [num_out][num_in / group]); bias [num_out] or null. For ggml's formats `values` are rows of blocks.
//
// Or the rows are still in a file, open as descriptor `file`: row r begins at byte places[r], and is all zeros if that
// is negative. Each thread then reads the rows of the panel that it fills, so there is never a complete second copy.
struct Source {
    const void* values;
    const float* scales;
    const uint8_t* zeros;
    const float* bias;
    const int64_t* places;  // [num_out], or null
    int32_t file;
};

// Memory aligned to cache lines, on huge pages if it is large; null if there is not enough.
void* allocate(int64_t bytes);

// The weight's row for output `lane` of a panel, or -1 after the last output.
int row_of(const Linear& linear, int panel, int lane);

// Bytes of a row of blocks in a GGUF file.
int64_t block_row_bytes(const Linear& linear);

// Bytes of a packed panel of a block format.
int64_t block_panel_bytes(const Linear& linear);

// Fills the memory of a panel of a block format from rows of ggml's blocks; a null row is missing.
void pack_blocks(const Linear& linear, uint8_t* panel, const uint8_t* const rows[PANEL]);

// Converts row `row` of a packed weight of floats or blocks to floats [num_in]; the weight must not be paired.
void read_row(const Linear& linear, int64_t row, float* out);

// Points a weight at memory where it is packed or will be, and sets its other fields. Its format, num_out, num_in,
// paired and, for int4, group must be set. Returns its size in bytes; it is one piece that begins at `weights`.
int64_t place(Linear& linear, char* memory, bool has_bias);

// Allocates memory for such a weight and packs it. Returns its size in bytes, 0 if there is not enough memory, or -1 if
// the file with its rows cannot be read.
int64_t pack(Linear& linear, const Source& source, int num_threads);

}  // namespace forerun
