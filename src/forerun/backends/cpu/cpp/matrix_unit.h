// How rows lie for the processor's matrix unit (Intel's AMX), and the unit's state.
//
// The unit multiplies matrices of up to 16 rows of 64 bytes. Here one is sixteen rows' inputs of a group, another the codes
// of a panel. Both are whole numbers of at most 8 bits, inputs of 16 bits as two of them, and their sums are exact, so that
// the results' bits are those of all other instruction sets. They stand in bfloat16, whose products the unit adds up in
// float32, where no sum reaches 2^24; else in bytes.
#pragma once
#include <cstdint>

#include "blocks.h"

#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

namespace forerun::FORERUN_TIER {
namespace {

constexpr int UNIT_ROWS = 16;

// A group of sixteen rows' inputs for the unit: one or two matrices of whole numbers, then each row's scale and term (see
// input_group_bytes). Inputs x of 16 bits are 256 h and x - 256 h with h = x / 256, rounded; of bytes h itself. Both have a
// matrix, but those of a group of 16 stand beside each other. Four inputs in bfloat16 have the order 0, 2, 1, 3, as in Codes.
struct UnitGroup {
    int group;
    bool is_wide, is_bytes;  // inputs of 16 bits; matrices of bytes

    constexpr UnitGroup(const BlockLayout& layout, int input_bits)
        : group(layout.group), is_wide(input_bits != 8), is_bytes(!is_wide || most_sum(layout) >= 1 << 24) {}
    static constexpr int64_t most_sum(const BlockLayout& layout) {  // high and low inputs are at most 127 * 256 and 128
        return static_cast<int64_t>(layout.group) * layout.most_value() * (127 * 256 + 128);
    }
    // Groups of 16 bytes are no faster: half of the unit would be idle.
    constexpr bool gains() const { return !is_bytes || group == 32; }
    constexpr int line_bytes() const { return is_bytes ? group : 64; }  // of a row of a matrix
    constexpr int matrix_bytes() const { return UNIT_ROWS * line_bytes(); }
    constexpr int num_matrices() const { return is_wide && (is_bytes || group == 32) ? 2 : 1; }
    constexpr int low_inputs() const { return num_matrices() == 2 ? matrix_bytes() : 2 * group; }  // behind the high ones
    constexpr int scales() const { return num_matrices() * matrix_bytes(); }
    constexpr int num_bytes() const { return scales() + 2 * UNIT_ROWS * static_cast<int>(sizeof(float)); }
};

inline UnitGroup unit_group(const Linear& linear) { return {layout_of(linear.format), linear.input_bits}; }

#ifdef __AMX_BF16__

// The tiles in use: sums 0 and 2 (of two panels), 1 and 3 (those of low bytes); inputs 4 and 5 (high and low); codes 6 and 7
// (of two panels).
struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t num_rows[16] = {};

    explicit Shapes(UnitGroup inputs) {
        for (int tile = 0; tile < 8; tile++) {
            row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? inputs.line_bytes() : 64);
            num_rows[tile] = static_cast<uint8_t>(tile < 6 ? UNIT_ROWS : inputs.line_bytes() / 4);
        }
    }
};

// Claims the unit for this thread while it lives: a thread that holds tiles is slower to switch.
class UnitInUse {
   public:
    UnitInUse(bool is_claimed, const Linear& linear) : is_claimed_(is_claimed) {
        if (!is_claimed_) return;
        const Shapes shapes(unit_group(linear));
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~UnitInUse() {
        if (is_claimed_) _tile_release();
    }
    UnitInUse(const UnitInUse&) = delete;
    UnitInUse& operator=(const UnitInUse&) = delete;

   private:
    bool is_claimed_;
};
#else
struct UnitInUse {
    UnitInUse(bool, const Linear&) {}
};
#endif

}  // namespace
}  // namespace forerun::FORERUN_TIER
