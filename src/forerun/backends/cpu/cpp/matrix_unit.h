// Products of many rows with an unpacked group of codes by the processor's matrix unit (Intel's AMX).
//
// The unit multiplies tiles of up to 16 rows of 64 bytes. Here one is sixteen rows' inputs of a group, another the codes of
// a panel, which lie as it wants them: four inputs of sixteen outputs in each row. Sums are whole numbers, so their bits
// are those of all other instruction sets. Inputs of 16 bits are two planes of bytes, whose products are added up apart.
#pragma once
#include <cstdint>

#ifdef __AMX_INT8__
#include <immintrin.h>
#endif

namespace forerun::FORERUN_TIER {
namespace {

constexpr int UNIT_ROWS = 16;

#ifdef __AMX_INT8__

// The tiles in use: sums 0 to 3 (plane, panel), inputs 4 and 5 (plane), codes 6 and 7 (panel).
struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t num_rows[16] = {};

    explicit Shapes(int group) {
        for (int tile = 0; tile < 8; tile++) {
            row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? group : 64);
            num_rows[tile] = static_cast<uint8_t>(tile < 6 ? UNIT_ROWS : group / 4);
        }
    }
};

// Claims the unit for this thread while it lives: a thread that holds tiles is slower to switch.
class UnitInUse {
   public:
    UnitInUse(bool is_claimed, int group) : is_claimed_(is_claimed) {
        if (!is_claimed_) return;
        const Shapes shapes(group);
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
    UnitInUse(bool, int) {}
};
#endif

}  // namespace
}  // namespace forerun::FORERUN_TIER
