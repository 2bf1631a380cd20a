// Tiles of block formats: the products of R rows with P panels over some records, added to sums in memory.
//
// A row's inputs are integers of 16 or 8 bits with a scale per group, so the products of a group are summed exactly as
// integers. Only the scaling rounds, once per group and in the order of the groups. So all instruction sets and all
// layouts of codes and inputs give the same bits.
//
// Compiled once for each part of the formats, with FORERUN_FORMATS as that part's list in kernels.h.
#include "block_codes.h"
#include "tiles.h"
#include "tiles_unit.h"

namespace forerun::FORERUN_TIER {
namespace {

// A group of P panels with unpacked codes and float scales, so that many rows share the work of unpacking. How it is
// multiplied depends on the size of the group and on the kind of its values, not on the format that it was packed in.
template <int SIZE, bool MINIMA, bool OFFSET, bool BY_BYTES, int P>
struct Unpacked {
    static constexpr int GROUP = SIZE, VECTORS = GROUP / 4;
    static constexpr int VECTOR_BYTES = BY_BYTES ? 64 : sizeof(simd::Codes);
    static constexpr bool HAS_MINIMA = MINIMA, HAS_OFFSET = OFFSET;

    struct Factors {
        simd::F scale, minimum;
    };
    Factors factors[P];
    alignas(64) char packed[P][VECTORS * VECTOR_BYTES];

    template <class From>
    void take(const From* blocks, const char* from, int64_t panel_bytes) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) {
            factors[p].scale = blocks[p].scale;
            if constexpr (HAS_MINIMA) factors[p].minimum = blocks[p].minimum;
            take_codes<From, 0>(packed[p], from + p * panel_bytes);
        }
    }
    template <class From, int V>
    static FORERUN_INLINE void take_codes(char* to, const char* from) {
        if constexpr (V < VECTORS) {
            if constexpr (BY_BYTES)
                simd::store_bytes(to + V * VECTOR_BYTES, From::template bytes<V>(from));
            else
                simd::store_codes(to + V * VECTOR_BYTES, From::template codes<V>(from));
            take_codes<From, V + 1>(to, from);
        }
    }
    template <int V>
    static simd::Bytes bytes(const char* from) {
        return simd::load_bytes(from + V * VECTOR_BYTES);
    }
    template <int V>
    static simd::Codes codes(const char* from) {
        return simd::load_codes(from + V * VECTOR_BYTES);
    }
};

// Adds the products of R rows' inputs of a group, from x on, with P panels' codes.
template <class B, int R, int P, bool BY_BYTES, int V = 0>
FORERUN_INLINE void add_products(simd::Dots (&totals)[R][P], const char* packed, int64_t panel_bytes, const char* x) {
    constexpr int ROW = input_group_bytes(B::GROUP, BY_BYTES ? 8 : 16);
    if constexpr (V < B::VECTORS && BY_BYTES) {
        simd::Bytes first[P], second[P];
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) {
            first[p] = B::template bytes<V>(packed + p * panel_bytes);
            second[p] = B::template bytes<V + 1>(packed + p * panel_bytes);
        }
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            FORERUN_UNROLL
            for (int p = 0; p < P; p++)
                totals[r][p] = simd::dot_s8(totals[r][p], first[p], second[p], x + r * ROW + 4 * V);
        }
        add_products<B, R, P, BY_BYTES, V + 2>(totals, packed, panel_bytes, x);
    } else if constexpr (V < B::VECTORS) {
        simd::Codes codes[P];
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) codes[p] = B::template codes<V>(packed + p * panel_bytes);
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            FORERUN_UNROLL
            for (int p = 0; p < P; p++) totals[r][p] = simd::dot_s16(totals[r][p], codes[p], x + r * ROW + 8 * V);
        }
        add_products<B, R, P, BY_BYTES, V + 1>(totals, packed, panel_bytes, x);
    }
}

// The sum that a row's group of inputs starts from, if codes have an offset.
inline int32_t start_of(const char* x) { return *reinterpret_cast<const int32_t*>(x + 4); }

// Adds a row's exact sum of a group's products with a panel, times the scales, to `at`. `factors` are the row's.
template <class B, class Factors>
FORERUN_INLINE void add_scaled(simd::Dots total, const Factors& of_panel, const float* factors, float* at) {
    const simd::F factor = simd::mul(of_panel.scale, simd::set1(factors[0]));
    simd::F sum = simd::fma(simd::to_float(total), factor, simd::load(at));
    if constexpr (B::HAS_MINIMA) sum = simd::fma(of_panel.minimum, simd::set1(factors[1]), sum);
    simd::store(at, sum);
}

// Adds the products of R rows' groups of inputs, from x on, with P panels' codes to sums.
template <class B, int R, int P, bool BY_BYTES, class Factors>
FORERUN_INLINE void multiply_group(const Factors* factors_of, const char* packed, int64_t panel_bytes, const char* x,
                                   float* sums, int64_t sums_stride) {
    constexpr int ROW = input_group_bytes(B::GROUP, BY_BYTES ? 8 : 16);
    simd::Dots totals[R][P];
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        const int32_t start = B::HAS_OFFSET ? start_of(x + r * ROW) : 0;
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) totals[r][p] = simd::to_dots(simd::set1_int(start));
    }
    add_products<B, R, P, BY_BYTES>(totals, packed, panel_bytes, x + 8);
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        const float* factors = reinterpret_cast<const float*>(x + r * ROW);
        FORERUN_UNROLL
        for (int p = 0; p < P; p++)
            add_scaled<B>(totals[r][p], factors_of[p], factors, sums + r * sums_stride + p * PANEL);
    }
}

template <class B, int R, int P, bool BY_BYTES>
void multiply_blocks(const Stretch& s) {
    const char *record = s.weights, *x = s.inputs, *ahead = s.ahead;
    const int64_t panel_bytes = s.panel_bytes, group_stride = s.group_stride;
    for (int step = 0; step < s.num_steps; step++) {
        B blocks[P];
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) blocks[p].take_record(record + p * panel_bytes);
        const char* packed = record + B::HEADER_BYTES;
        for (int group = 0; group < B::GROUPS; group++) {
            ahead = prefetch_group<B, P>(s, group, ahead);
            FORERUN_UNROLL
            for (int p = 0; p < P; p++) blocks[p].take_group(record + p * panel_bytes, group);
            multiply_group<B, R, P, BY_BYTES>(blocks, packed, panel_bytes, x, s.sums, s.sums_stride);
            packed += B::GROUP_BYTES;
            x += group_stride;
        }
        record += B::RECORD_BYTES;
    }
}

// Adds the products of num_rows rows, R at a time, with an unpacked group.
template <class U, int R, int P, bool BY_BYTES>
FORERUN_APART void multiply_unpacked(const U& group, const char* x, int num_rows, float* sums, int64_t sums_stride) {
    constexpr int ROW = input_group_bytes(U::GROUP, BY_BYTES ? 8 : 16);
    int row = 0;
    for (; row + R <= num_rows; row += R)
        multiply_group<U, R, P, BY_BYTES>(group.factors, group.packed[0], sizeof group.packed[0], x + row * ROW,
                                          sums + row * sums_stride, sums_stride);
    if constexpr (R > 1)
        if (row < num_rows)
            multiply_unpacked<U, R - 1, P, BY_BYTES>(group, x + row * ROW, num_rows - row, sums + row * sums_stride,
                                                     sums_stride);
}

// The products of many rows with P panels: each group is unpacked once into the L1 cache and used for all rows.
template <class B, int P, bool BY_BYTES>
void multiply_many(const Stretch& s, int num_rows) {
    const char *record = s.weights, *x = s.inputs, *ahead = s.ahead;
    using U = Unpacked<B::GROUP, B::HAS_MINIMA, B::HAS_OFFSET, BY_BYTES, P>;
    U unpacked;
    for (int step = 0; step < s.num_steps; step++, record += B::LAYOUT.record_bytes()) {
        B blocks[P];
        for (int p = 0; p < P; p++) blocks[p].take_record(record + p * s.panel_bytes);
        for (int group = 0; group < B::GROUPS; group++, x += s.group_stride) {
            ahead = prefetch_group<B, P>(s, group, ahead);
            for (int p = 0; p < P; p++) blocks[p].take_group(record + p * s.panel_bytes, group);
            const char* packed = record + B::LAYOUT.header_bytes() + group * B::LAYOUT.group_bytes();
            unpacked.take(blocks, packed, s.panel_bytes);
            multiply_unpacked<U, simd::UNPACKED_ROWS, P, BY_BYTES>(unpacked, x, num_rows, s.sums, s.sums_stride);
        }
    }
}

template <class Block, int R, bool BY_BYTES>
constexpr void add_tiles(Tiles& tiles) {
    tiles.run[R - 1] = multiply_blocks<Block, R, TILE_PANELS, BY_BYTES>;
    if constexpr (R > 1) add_tiles<Block, R - 1, BY_BYTES>(tiles);
}

template <Format FORMAT, int INPUT_BITS>
constexpr Tiles tiles_of() {
    using B = Block<FORMAT>;
    constexpr bool BY_BYTES = are_bytes(B::LAYOUT, INPUT_BITS);
    Tiles tiles{{}, simd::BLOCK_ROWS, B::LAYOUT.inputs, 0, B::LAYOUT.record_bytes(), false,
                multiply_many<B, TILE_PANELS, BY_BYTES>, nullptr};
#ifdef __AMX_BF16__
    if constexpr (UnitGroup(B::LAYOUT, INPUT_BITS).gains()) tiles.run_by_unit = multiply_by_unit<B, INPUT_BITS>;
#endif
    add_tiles<B, simd::BLOCK_ROWS, BY_BYTES>(tiles);
    return tiles;
}

template <Format FORMAT, int INPUT_BITS>
constexpr Tiles TILES = tiles_of<FORMAT, INPUT_BITS>();

}  // namespace

#define FORERUN_TILES_OF(name, ...) \
    const Tiles& tiles_of_##name(int input_bits) { \
        return input_bits == 8 ? TILES<Format::name, 8> : TILES<Format::name, 16>; \
    }
FORERUN_FORMATS(FORERUN_TILES_OF)
#undef FORERUN_TILES_OF

}  // namespace forerun::FORERUN_TIER
