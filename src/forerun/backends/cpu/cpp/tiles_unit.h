// Products of many rows with a pair of panels by the matrix unit; part of tiles_blocks.cpp.
#pragma once
#include "matrix_unit.h"

#ifdef __AMX_INT8__

namespace forerun::FORERUN_TIER {
namespace {

// The unit's sums of sixteen rows with two panels, which are scaled while the unit computes the next.
template <class U, bool BY_BYTES>
struct Waiting {
    static constexpr int ROW = input_group_bytes(U::GROUP, BY_BYTES ? 8 : 16), TILE = UNIT_ROWS * PANEL;

    int32_t* sums;  // tiles of the two panels; and, below inputs' high bytes, of their low bytes
    const typename U::Factors* factors;
    const char* x;
    float* to;

    // Adds eight rows' sums with a panel, scaled.
    template <int P, int FIRST>
    FORERUN_INLINE void add_half() const {
        const typename U::Factors of_panel = factors[P];
        const int32_t* from = sums + P * TILE + FIRST * PANEL;
        const char* row = x + FIRST * ROW;
        float* at = to + FIRST * SUMS_STRIDE + P * PANEL;
        FORERUN_UNROLL
        for (int r = 0; r < UNIT_ROWS / 2; r++) {
            simd::I total = simd::load_int(from + r * PANEL);
            if constexpr (!BY_BYTES)
                total = simd::add_int(simd::shift_left<8>(total), simd::load_int(from + 2 * TILE + r * PANEL));
            if constexpr (U::HAS_OFFSET) total = simd::add_int(total, simd::set1_int(start_of(row + r * ROW)));
            add_scaled<U>(simd::to_dots(total), of_panel, reinterpret_cast<const float*>(row + r * ROW),
                          at + r * SUMS_STRIDE);
        }
    }
};

// The unit's products of sixteen rows of `now` with the codes in tiles 6 and 7. A step of the unit takes tens of cycles, so
// between two of them a part of `before` is scaled, and sums are stored no earlier than their tiles are needed again.
template <class W, int GROUP, bool BY_BYTES>
FORERUN_INLINE void multiply_tiles(const W before, const W now) {
    constexpr int LINE = PANEL * sizeof(int32_t), HALF = UNIT_ROWS / 2;
    _tile_loadd(4, now.x + 8, W::ROW);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 6);
    _tile_stored(2, before.sums + W::TILE, LINE);
    before.template add_half<0, 0>();
    if constexpr (!BY_BYTES) {
        _tile_loadd(5, now.x + 8 + GROUP, W::ROW);
        _tile_zero(1);
        _tile_dpbsud(1, 5, 6);
        _tile_stored(3, before.sums + 3 * W::TILE, LINE);
    }
    before.template add_half<0, HALF>();
    _tile_zero(2);
    _tile_dpbsud(2, 4, 7);
    _tile_stored(0, now.sums, LINE);
    before.template add_half<1, 0>();
    if constexpr (!BY_BYTES) {
        _tile_zero(3);
        _tile_dpbsud(3, 5, 7);
        _tile_stored(1, now.sums + 2 * W::TILE, LINE);
    }
    before.template add_half<1, HALF>();
}

// The groups of a stretch, unpacked one after the other.
template <class B, class U>
struct Groups {
    const Stretch& s;
    const char *record, *ahead;
    int group = 0;
    B blocks[2];

    explicit Groups(const Stretch& stretch) : s(stretch), record(s.weights), ahead(s.ahead) {}

    FORERUN_INLINE void unpack(U& to) {
        ahead = prefetch_group<B, 2>(s, group, ahead);
        if (group == 0)
            for (int p = 0; p < 2; p++) blocks[p].take_record(record + p * s.panel_bytes);
        for (int p = 0; p < 2; p++) blocks[p].take_group(record + p * s.panel_bytes, group);
        to.take(blocks, record + B::LAYOUT.header_bytes() + group * B::LAYOUT.group_bytes(), s.panel_bytes);
        if (++group == B::GROUPS) {
            group = 0;
            record += B::LAYOUT.record_bytes();
        }
    }
};

// Rows are taken sixteen at a time. After the last there is memory for as many, and nobody reads their sums.
template <class B, bool BY_BYTES>
void multiply_by_unit(const Stretch& s, int num_rows) {
    using U = Unpacked<B::GROUP, B::HAS_MINIMA, B::HAS_OFFSET, true, 2>;
    using W = Waiting<U, BY_BYTES>;
    alignas(64) int32_t sums[2][4 * W::TILE];
    alignas(64) float nowhere[UNIT_ROWS * SUMS_STRIDE];
    U unpacked[3];  // of the group before, whose sums wait; of this one; of the next
    Groups<B, U> groups(s);
    const int num_groups = s.num_steps * B::GROUPS;
    W before{sums[1], unpacked[2].factors, s.inputs, nowhere};  // nothing yet
    int buffer = 0;
    groups.unpack(unpacked[0]);
    asm volatile("" ::: "memory");  // GCC 12's loads of tiles do not say that they read memory; its stores do
    const char* x = s.inputs;
    for (int number = 0, which = 0; number < num_groups; number++, x += s.group_stride) {
        const int next = which == 2 ? 0 : which + 1;
        const U& codes = unpacked[which];
        _tile_loadd(6, codes.packed[0], LINE_BYTES);
        _tile_loadd(7, codes.packed[1], LINE_BYTES);
        if (number + 1 < num_groups) groups.unpack(unpacked[next]);
        for (int row = 0; row < num_rows; row += UNIT_ROWS, buffer ^= 1) {
            const W now{sums[buffer], codes.factors, x + row * W::ROW, s.sums + row * SUMS_STRIDE};
            multiply_tiles<W, B::GROUP, BY_BYTES>(before, now);
            before = now;
        }
        which = next;
    }
    _tile_stored(2, before.sums + W::TILE, LINE_BYTES);
    if constexpr (!BY_BYTES) _tile_stored(3, before.sums + 3 * W::TILE, LINE_BYTES);
    before.template add_half<0, 0>();
    before.template add_half<0, UNIT_ROWS / 2>();
    before.template add_half<1, 0>();
    before.template add_half<1, UNIT_ROWS / 2>();
}

}  // namespace
}  // namespace forerun::FORERUN_TIER

#endif
