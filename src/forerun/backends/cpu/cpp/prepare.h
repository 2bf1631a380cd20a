// Converts rows of activations to the input format of a linear.
#pragma once
#include <cstring>

#include "blocks.h"
#include "kernels.h"
#include "linear.h"
#include "simd.h"

namespace forerun::FORERUN_TIER {
namespace {

constexpr float INT8_MOST = 127.0f;
constexpr float INT16_MOST = 127 * 256 + 127;  // its rounded high byte and its signed low byte both fit int8
constexpr float TINIEST = 1e-30f;  // a group whose largest input is below this counts as zeros

simd::F absolute(simd::F x) { return simd::max(x, simd::sub(simd::zero(), x)); }

// Loads sixteen inputs from `k` on; those after the last are 0.
simd::F inputs_from(const float* x, int k, int num_in) {
    const int left = num_in - k;
    return left >= PANEL ? simd::load(x + k) : left > 0 ? simd::load_n(x + k, left) : simd::zero();
}

void prepare_float(const float* x, int num_in, int padded_in, float* out) {
    int k = 0;
    for (; k + PANEL <= padded_in; k += PANEL) simd::store(out + k, inputs_from(x, k, num_in));
    if (k < padded_in) simd::store_n(out + k, inputs_from(x, k, num_in), padded_in - k);
}

void prepare_bf16(const float* x, int num_in, int padded_in, simd::Bf16Input* out) {
    int k = 0;
    for (; k + PANEL <= padded_in; k += PANEL) simd::store_bf16_inputs(out + k, inputs_from(x, k, num_in));
    if (k == padded_in) return;
    simd::Bf16Input tail[PANEL];
    simd::store_bf16_inputs(tail, inputs_from(x, k, num_in));
    for (int i = 0; k + i < padded_in; i++) out[k + i] = tail[i];
}

// The largest absolute value in a group of inputs. If an input is not finite, or all count as zeros, returns 0 together
// with the group's scale: NaN, which propagates to every output of the row, or 0.
float largest_of(const float* x, int begin, int end, int num_in, float* flaw) {
    simd::F most = simd::zero(), poison = simd::zero();
    for (int k = begin; k < end; k += PANEL) {
        const simd::F v = inputs_from(x, k, num_in);
        most = simd::max(most, absolute(v));
        poison = simd::fma(v, simd::zero(), poison);
    }
    const float largest = simd::max_of(most);
    *flaw = simd::sum(poison);
    return largest >= TINIEST && *flaw == 0.0f ? largest : 0.0f;
}

// Converts a group of inputs to integers of up to `most`, and returns their sum. The inputs are about these integers times
// `scale`. They are stored sixteen at a time: by store(number of the first, integers).
template <class Store>
float prepare_group(const float* x, int begin, int end, int num_in, float most, Store store, float* scale) {
    float flaw;
    const float largest = largest_of(x, begin, end, num_in, &flaw);
    const bool is_fit = largest > 0.0f;
    const simd::F inverse = simd::set1(is_fit ? most / largest : 0.0f);
    simd::F total = simd::zero();
    for (int k = begin; k < end; k += PANEL) {
        const simd::F v = is_fit ? inputs_from(x, k, num_in) : simd::zero();
        const simd::I rounded = simd::round_int(simd::mul(v, inverse));
        total = simd::add(total, simd::to_float(rounded));
        store(k - begin, rounded);
    }
    *scale = is_fit ? largest / most : flaw;
    return simd::sum(total);  // exact: integers below 2^24
}
// Stores sixteen integers of `bits` bits.
void store_integers(char* to, simd::I x, int bits) {
    if (bits == 8)
        simd::store_s8(reinterpret_cast<int8_t*>(to), x);
    else
        simd::store_s16(to, x);
}

// Stores sixteen integers of a row for the matrix unit.
void store_for_unit(char* to, simd::I x, UnitGroup unit) {
    if (!unit.is_wide) return simd::store_s8(reinterpret_cast<int8_t*>(to), x);
    if (unit.is_bytes) return simd::store_planes(to, to + unit.low_inputs(), x);
    const simd::I high = simd::and_int(simd::add_int(x, simd::set1_int(128)), simd::set1_int(-256));
    simd::store_bf16_pairs(to, high);
    simd::store_bf16_pairs(to + unit.low_inputs(), simd::sub_int(x, high));
}

// Converts row t for a block format. The sum of a group's integers is stored next to their scale: multiplied by the scale if
// the format has minima, else by -offset, the offset of the codes.
void prepare_blocks(const Linear& linear, const float* x, int t, Rows out) {
    const BlockLayout& layout = layout_of(linear.format);
    const float most = linear.input_bits == 8 ? INT8_MOST : INT16_MOST;
    const int bits = input_bits(linear), group = layout.group;
    char* to = static_cast<char*>(out.values) + t * out.stride;
    for (int k = 0; k < linear.padded_in; k += group, to += out.group_stride) {
        const auto store = [&](int number, simd::I some) { store_integers(to + 8 + number * bits / 8, some, bits); };
        float scale;
        const float sum = prepare_group(x, k, k + group, linear.num_in, most, store, &scale);
        const float scaled = scale * sum;
        const int32_t start = -layout.offset * static_cast<int32_t>(sum);
        std::memcpy(to, &scale, 4);
        std::memcpy(to + 4, layout.has_minima ? static_cast<const void*>(&scaled) : &start, 4);
    }
}

// The same by tiles.
void prepare_tiles(const Linear& linear, const float* x, int t, Rows out) {
    const UnitGroup unit = unit_group(linear);
    const float most = unit.is_wide ? INT16_MOST : INT8_MOST;
    const int row = t % UNIT_ROWS;
    char* tile = static_cast<char*>(out.values) + t / UNIT_ROWS * out.stride;
    for (int k = 0; k < linear.padded_in; k += unit.group, tile += out.group_stride) {
        char* line = tile + row * unit.line_bytes();
        const int size = unit.is_bytes ? 1 : 2;
        const auto store = [&](int number, simd::I some) { store_for_unit(line + size * number, some, unit); };
        float* scale = reinterpret_cast<float*>(tile + unit.scales()) + row;
        const float sum = prepare_group(x, k, k + unit.group, linear.num_in, most, store, scale);
        scale[UNIT_ROWS] = *scale * sum;
        // Rows after the last one are multiplied too: by 0, since arithmetic with whatever tiny numbers were there would be slow.
        for (int behind = 1; t == out.num_rows - 1 && row + behind < UNIT_ROWS; behind++)
            scale[behind] = scale[UNIT_ROWS + behind] = 0.0f;
    }
}

void prepare(const Linear& linear, const float* x, int64_t x_stride, int t_begin, int t_end, Rows out) {
    const int num_in = linear.num_in, padded_in = linear.padded_in, bits = input_bits(linear);
    for (int t = t_begin; t < t_end; t++) {
        const float* row = x + t * x_stride;
        char* values = static_cast<char*>(out.values) + t * out.stride;
        switch (static_cast<Format>(linear.format)) {
            case Format::f32:
            case Format::int8_wide: prepare_float(row, num_in, padded_in, reinterpret_cast<float*>(values)); break;
            case Format::bf16: prepare_bf16(row, num_in, padded_in, reinterpret_cast<simd::Bf16Input*>(values)); break;
            case Format::int8:
            case Format::int4: {
                const int num_groups = padded_in / linear.group;
                float* scales = out.scales + static_cast<int64_t>(t) * num_groups;
                int32_t* sums = out.sums + static_cast<int64_t>(t) * num_groups;
                for (int g = 0; g < num_groups; g++, values += linear.group * bits / 8) {
                    const auto store = [&](int number, simd::I some) { store_integers(values + number * bits / 8, some, bits); };
                    sums[g] = static_cast<int32_t>(prepare_group(row, g * linear.group, (g + 1) * linear.group, num_in,
                                                                 INT8_MOST, store, scales + g));
                }
                break;
            }
            default: out.by_tiles ? prepare_tiles(linear, row, t, out) : prepare_blocks(linear, row, t, out);
        }
    }
}

}  // namespace
}  // namespace forerun::FORERUN_TIER
