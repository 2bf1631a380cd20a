// Products of many rows with a pair of panels by the matrix unit, whose sums of a group are exact.
#pragma once
#include "block_codes.h"
#include "matrix_unit.h"

#ifdef __AMX_BF16__

namespace forerun::FORERUN_TIER {
namespace {

// What a format's codes stand for, as bfloat16.
template <class B>
struct Bf16Table {
    static constexpr int SIZE = B::BITS == 6 ? 64 : 32;
    alignas(64) uint16_t words[SIZE];

    constexpr Bf16Table() : words{} {
        for (int code = 0; code < SIZE; code++) words[code] = bf16_of(B::value_of(code % (1 << B::BITS)));
    }
    static constexpr uint16_t bf16_of(int value) {
        int size = value < 0 ? -value : value, exponent = 127 + 7;
        if (!size) return 0;
        for (; size < 128; size *= 2) exponent--;
        return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | exponent << 7 | (size - 128));
    }
};

// The same of some codes, as signed bytes.
template <class B>
FORERUN_INLINE simd::Bytes values_of(simd::Bytes codes) {
    if constexpr (B::LAYOUT.table() != nullptr) {
        static constexpr Table TABLE(B::LAYOUT.table(), 0);
        return simd::look_up(codes, TABLE.values);
    }
    if constexpr (B::HAS_MINIMA) return codes;
    return simd::sub_bytes(codes, B::LAYOUT.offset);
}

#define FORERUN_STEP(sums, inputs, codes) \
    if constexpr (INPUTS.is_bytes) \
        _tile_dpbssd(sums, inputs, codes); \
    else \
        _tile_dpbf16ps(sums, inputs, codes)

// A format's products with inputs of so many bits.
template <class B, int INPUT_BITS>
struct UnitProduct {
    static constexpr UnitGroup INPUTS{B::LAYOUT, INPUT_BITS};
    static constexpr int NUM_MATRICES = INPUTS.num_matrices(), LINE = INPUTS.line_bytes();
    static constexpr bool HAS_LOW_SUMS = INPUTS.is_bytes && NUM_MATRICES == 2;
    static constexpr int TILE = UNIT_ROWS * PANEL;  // sums of a panel

    struct Factors {
        simd::F scales[2], minima[2];
    };

    // A group of two panels.
    struct Codes {
        Factors factors;
        alignas(64) char matrices[2][LINE / 4 * LINE_BYTES];

        void take(const B* blocks, const char* from, int64_t panel_bytes) {
            FORERUN_UNROLL
            for (int p = 0; p < 2; p++) {
                factors.scales[p] = blocks[p].scale;
                if constexpr (B::HAS_MINIMA) factors.minima[p] = blocks[p].minimum;
                take_vectors<0>(matrices[p], from + p * panel_bytes);
            }
        }
        template <int V>
        static FORERUN_INLINE void take_vectors(char* to, const char* from) {
            if constexpr (V < B::VECTORS && INPUTS.is_bytes) {
                simd::store_bytes(to + V * LINE_BYTES, values_of<B>(B::template plain_codes<V>(from)));
                take_vectors<V + 1>(to, from);
            } else if constexpr (V < B::VECTORS) {
                static constexpr Bf16Table<B> TABLE;
                const simd::Codes pairs = simd::look_up_pairs<TABLE.SIZE>(B::template plain_codes<V>(from), TABLE.words);
                simd::store_codes(to + V * 2 * LINE_BYTES, pairs);
                if constexpr (NUM_MATRICES == 1)  // once more for the low inputs
                    simd::store_codes(to + (B::VECTORS + V) * 2 * LINE_BYTES, pairs);
                take_vectors<V + 1>(to, from);
            }
        }
    };

    // The unit's sums of sixteen rows with two panels, which are scaled while the unit computes the next.
    struct Waiting {
        float* sums;  // or int32: tiles of the two panels; then those of low bytes
        const Factors* factors;
        const char* x;
        float* to;

        FORERUN_INLINE simd::F total(const float* from) const {
            if constexpr (!INPUTS.is_bytes) return simd::load(from);
            const int32_t* whole = reinterpret_cast<const int32_t*>(from);
            simd::I sum = simd::load_int(whole);
            if constexpr (HAS_LOW_SUMS) sum = simd::add_int(simd::shift_left<8>(sum), simd::load_int(whole + 2 * TILE));
            return simd::to_float(sum);
        }

        // Adds the sums of half of the rows with a panel, scaled.
        template <int P, int HALF>
        FORERUN_INLINE void add() const {
            const simd::F scale_of_panel = factors->scales[P], minimum = factors->minima[P];
            const float* scales = reinterpret_cast<const float*>(x + INPUTS.scales());
            FORERUN_UNROLL
            for (int row = UNIT_ROWS / 2 * HALF; row < UNIT_ROWS / 2 * (HALF + 1); row++) {
                float* at = to + row * SUMS_STRIDE + P * PANEL;
                const simd::F factor = simd::mul(scale_of_panel, simd::set1(scales[row]));
                simd::F sum = simd::fma(total(sums + P * TILE + row * PANEL), factor, simd::load(at));
                if constexpr (B::HAS_MINIMA) sum = simd::fma(minimum, simd::set1(scales[UNIT_ROWS + row]), sum);
                simd::store(at, sum);
            }
        }
        // Stores the second panel's sums, which are the last to be ready.
        FORERUN_INLINE void store_second() const {
            _tile_stored(2, sums + TILE, LINE_BYTES);
            if constexpr (HAS_LOW_SUMS) _tile_stored(3, sums + 3 * TILE, LINE_BYTES);
        }
    };

    // The unit's products of sixteen rows of `now` with the codes in tiles 6 and 7. A step of the unit takes tens of cycles, so
    // between two of them a part of `before` is scaled, and sums are stored a step after they were computed.
    static FORERUN_INLINE void multiply(const Waiting before, const Waiting now) {
        _tile_loadd(4, now.x, LINE);
        _tile_zero(0);
        FORERUN_STEP(0, 4, 6);
        before.store_second();
        before.template add<0, 0>();
        if constexpr (NUM_MATRICES == 2) _tile_loadd(5, now.x + INPUTS.low_inputs(), LINE);
        if constexpr (HAS_LOW_SUMS) {
            _tile_zero(1);
            FORERUN_STEP(1, 5, 6);
        } else if constexpr (NUM_MATRICES == 2) {
            FORERUN_STEP(0, 5, 6);
        }
        before.template add<0, 1>();
        _tile_zero(2);
        FORERUN_STEP(2, 4, 7);
        _tile_stored(0, now.sums, LINE_BYTES);
        before.template add<1, 0>();
        if constexpr (HAS_LOW_SUMS) {
            _tile_zero(3);
            FORERUN_STEP(3, 5, 7);
            _tile_stored(1, now.sums + 2 * TILE, LINE_BYTES);
        } else if constexpr (NUM_MATRICES == 2) {
            FORERUN_STEP(2, 5, 7);
        }
        before.template add<1, 1>();
    }
};

#undef FORERUN_STEP

// The groups of a stretch, unpacked one after the other.
template <class B, class Codes>
struct Groups {
    const Stretch& s;
    const char *record, *ahead;
    int group = 0;
    B blocks[2];

    explicit Groups(const Stretch& stretch) : s(stretch), record(s.weights), ahead(s.ahead) {}

    FORERUN_INLINE void unpack(Codes& to) {
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
template <class B, int INPUT_BITS>
void multiply_by_unit(const Stretch& s, int num_rows) {
    using U = UnitProduct<B, INPUT_BITS>;
    alignas(64) float sums[2][(U::HAS_LOW_SUMS ? 4 : 2) * U::TILE];
    alignas(64) float nowhere[UNIT_ROWS * SUMS_STRIDE];
    typename U::Codes unpacked[3];  // of the group before, whose sums wait; of this one; of the next
    Groups<B, typename U::Codes> groups(s);
    const int num_groups = s.num_steps * B::GROUPS;
    typename U::Waiting before{sums[1], &unpacked[2].factors, s.inputs, nowhere};  // nothing yet
    int buffer = 0;
    groups.unpack(unpacked[0]);
    asm volatile("" ::: "memory");  // GCC 12's loads of tiles do not say that they read memory; its stores do
    const char* x = s.inputs;
    for (int number = 0, which = 0; number < num_groups; number++, x += s.group_stride) {
        const int next = which == 2 ? 0 : which + 1;
        const typename U::Codes& codes = unpacked[which];
        _tile_loadd(6, codes.matrices[0], LINE_BYTES);
        _tile_loadd(7, codes.matrices[1], LINE_BYTES);
        if (number + 1 < num_groups) groups.unpack(unpacked[next]);
        for (int row = 0; row < num_rows; row += UNIT_ROWS, buffer ^= 1) {
            const typename U::Waiting now{sums[buffer], &codes.factors, x + row / UNIT_ROWS * U::INPUTS.num_bytes(),
                                          s.sums + row * SUMS_STRIDE};
            U::multiply(before, now);
            before = now;
        }
        which = next;
    }
    before.store_second();
    before.template add<0, 0>();
    before.template add<0, 1>();
    before.template add<1, 0>();
    before.template add<1, 1>();
}

}  // namespace
}  // namespace forerun::FORERUN_TIER

#endif
