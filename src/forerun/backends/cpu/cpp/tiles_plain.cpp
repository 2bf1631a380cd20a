// Tiles of the formats that are not blocks.
#include "tiles.h"

namespace forerun::FORERUN_TIER {
namespace {

struct Float32 {
    static constexpr bool BY_GROUPS = false;
    static constexpr int INPUTS = 1, INPUT_BYTES = 4, STEP_BYTES = 64;
    static simd::F dot(simd::F sum, const char* w, const char* x) {
        return simd::fma(simd::load(reinterpret_cast<const float*>(w)),
                         simd::set1(*reinterpret_cast<const float*>(x)), sum);
    }
};

struct Bfloat16 {
    static constexpr bool BY_GROUPS = false;
    static constexpr int INPUTS = 2, INPUT_BYTES = sizeof(simd::Bf16Input), STEP_BYTES = 64;
    static simd::F dot(simd::F sum, const char* w, const char* x) {
        return simd::dot_bf16(sum, simd::load_bytes(w), reinterpret_cast<const simd::Bf16Input*>(x));
    }
};

// A byte in the low mantissa bits of 2^23 gives the float 2^23 + byte; minus 2^23 + 128 it is the weight's value.
struct Int8Wide {
    static constexpr bool BY_GROUPS = false;
    static constexpr int INPUTS = 4, INPUT_BYTES = 4, STEP_BYTES = 64;
    static simd::F value(simd::I byte) {
        const simd::I low = simd::and_int(byte, simd::set1_int(0xff));
        return simd::sub(simd::from_bits(simd::or_int(low, simd::set1_int(0x4b000000))), simd::set1(8388736.0f));
    }
    static simd::F dot(simd::F sum, const char* w, const char* x) {
        const simd::I four = simd::load_int(reinterpret_cast<const int32_t*>(w));
        const float* input = reinterpret_cast<const float*>(x);
        sum = simd::fma(value(four), simd::set1(input[0]), sum);
        sum = simd::fma(value(simd::shift_right<8>(four)), simd::set1(input[1]), sum);
        sum = simd::fma(value(simd::shift_right<16>(four)), simd::set1(input[2]), sum);
        return simd::fma(value(simd::shift_right<24>(four)), simd::set1(input[3]), sum);
    }
};

struct Int8 {
    static constexpr bool BY_GROUPS = true, BY_BYTES = simd::MOST_BITS_BY_BYTES >= 8;
    static constexpr int INPUTS = 8, INPUT_BYTES = BY_BYTES ? 1 : 2, STEP_BYTES = 128;
    static simd::Dots start(const uint8_t*, int32_t input_sum) {
        return simd::to_dots(simd::set1_int(simd::SIGNED_CODES ? 0 : -128 * input_sum));
    }
    static simd::Dots dot(simd::Dots sum, const char* w, const char* x) {
        const simd::Bytes first = simd::codes_of_8_bits(simd::load_bytes(w));
        const simd::Bytes second = simd::codes_of_8_bits(simd::load_bytes(w + 64));
        if constexpr (BY_BYTES) return simd::dot_s8(sum, first, second, x);
        return simd::dot_s16(simd::dot_s16(sum, simd::split(first), x), simd::split(second), x + 8);
    }
    static simd::F factor(const float*, float input_scale) { return simd::set1(input_scale); }
};

struct Int4 {
    static constexpr bool BY_GROUPS = true;
    static constexpr int INPUTS = 8, INPUT_BYTES = 1, STEP_BYTES = 64;
    static simd::Dots start(const uint8_t* zeros, int32_t input_sum) {
        return simd::to_dots(simd::mul_int(simd::load_u8_int(zeros), simd::set1_int(-input_sum)));
    }
    static simd::Dots dot(simd::Dots sum, const char* w, const char* x) {
        const simd::Bytes both = simd::load_bytes(w);
        return simd::dot_s8(sum, simd::low_nibbles(both), simd::high_nibbles(both), x);
    }
    static simd::F factor(const float* scales, float input_scale) {
        return simd::mul(simd::load(scales), simd::set1(input_scale));
    }
};

// Prefetches one step's share of the next weights.
template <class Weight, int P, bool STREAMS>
FORERUN_INLINE const char* fetch(const char* ahead, int64_t panel_bytes, int64_t ahead_step) {
    FORERUN_UNROLL
    for (int line = 0; line < Weight::STEP_BYTES / LINE_BYTES; line++, ahead += ahead_step) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++)
            STREAMS ? simd::prefetch_once(ahead + p * panel_bytes) : simd::prefetch(ahead + p * panel_bytes);
    }
    return ahead;
}

// For float inputs: one sum from the first input to the last.
template <class Weight, int R, int P, bool STREAMS>
void multiply(const Stretch& s) {
    simd::F total[R][P];
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) total[r][p] = simd::load(s.sums + r * s.sums_stride + p * PANEL);
    }
    const char *w = s.weights, *x = s.inputs, *ahead = s.ahead;
    const int64_t panel_bytes = s.panel_bytes, row_bytes = s.row_bytes, ahead_step = s.ahead_step;
    for (int step = 0; step < s.num_steps; step++) {
        ahead = fetch<Weight, P, STREAMS>(ahead, panel_bytes, ahead_step);
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            FORERUN_UNROLL
            for (int p = 0; p < P; p++)
                total[r][p] = Weight::dot(total[r][p], w + p * panel_bytes, x + r * row_bytes);
        }
        w += Weight::STEP_BYTES;
        x += Weight::INPUTS * Weight::INPUT_BYTES;
    }
    FORERUN_UNROLL
    for (int r = 0; r < R; r++) {
        FORERUN_UNROLL
        for (int p = 0; p < P; p++) simd::store(s.sums + r * s.sums_stride + p * PANEL, total[r][p]);
    }
}

// For int8 inputs: exact integer sums over each group, scaled and added in the order of the groups.
template <class Weight, int R, int P, bool STREAMS>
void multiply_groups(const Stretch& s) {
    const char *w = s.weights, *x = s.inputs, *ahead = s.ahead;
    const int64_t panel_bytes = s.panel_bytes, row_bytes = s.row_bytes, ahead_step = s.ahead_step;
    for (int group = 0; group * s.group_steps < s.num_steps; group++) {
        const int64_t panel_scales = s.panel_groups * PANEL, own = group * PANEL;
        simd::Dots total[R][P];
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            FORERUN_UNROLL
            for (int p = 0; p < P; p++)
                total[r][p] = Weight::start(s.zeros + p * panel_scales + own, s.input_sums[r * s.row_groups + group]);
        }
        int step = s.group_steps;
        do {
            ahead = fetch<Weight, P, STREAMS>(ahead, panel_bytes, ahead_step);
            FORERUN_UNROLL
            for (int r = 0; r < R; r++) {
                FORERUN_UNROLL
                for (int p = 0; p < P; p++)
                    total[r][p] = Weight::dot(total[r][p], w + p * panel_bytes, x + r * row_bytes);
            }
            w += Weight::STEP_BYTES;
            x += Weight::INPUTS * Weight::INPUT_BYTES;
        } while (--step);
        FORERUN_UNROLL
        for (int r = 0; r < R; r++) {
            FORERUN_UNROLL
            for (int p = 0; p < P; p++) {
                float* sum = s.sums + r * s.sums_stride + p * PANEL;
                const simd::F factor =
                    Weight::factor(s.scales + p * panel_scales + own, s.input_scales[r * s.row_groups + group]);
                simd::store(sum, simd::fma(simd::to_float(total[r][p]), factor, simd::load(sum)));
            }
        }
    }
}

template <class Weight, int R, int P>
void run_tile(const Stretch& s) {
    if constexpr (Weight::BY_GROUPS)
        s.streams ? multiply_groups<Weight, R, P, true>(s) : multiply_groups<Weight, R, P, false>(s);
    else
        s.streams ? multiply<Weight, R, P, true>(s) : multiply<Weight, R, P, false>(s);
}

template <class Weight, int R>
constexpr void add_tiles(Tiles& tiles) {
    tiles.run[R - 1] = run_tile<Weight, R, TILE_PANELS>;
    if constexpr (R > 1) add_tiles<Weight, R - 1>(tiles);
}

template <class Weight, int MAX_ROWS = TILE_ROWS>
constexpr Tiles tiles_of() {
    Tiles tiles{{}, MAX_ROWS, Weight::INPUTS, Weight::INPUT_BYTES, Weight::STEP_BYTES, Weight::BY_GROUPS, nullptr};
    add_tiles<Weight, MAX_ROWS>(tiles);
    return tiles;
}

constexpr Tiles PLAIN_TILES[] = {tiles_of<Float32>(), tiles_of<Bfloat16>(), tiles_of<Int8>(), tiles_of<Int4>(),
                                 tiles_of<Int8Wide, simd::BLOCK_ROWS>()};  // in the order of Format

}  // namespace

const Tiles& plain_tiles(Format format) { return PLAIN_TILES[static_cast<int32_t>(format)]; }

}  // namespace forerun::FORERUN_TIER
