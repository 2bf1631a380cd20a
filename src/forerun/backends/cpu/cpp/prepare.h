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

// Converts a group of inputs to integers of up to `most`, in `bits` bits each, and returns their sum. The inputs are
// about these integers times `scale`.
float prepare_group(const float* x, int begin, int end, int num_in, float most, int bits, bool by_planes, char* out,
                    float* scale) {
    float flaw;
    const float largest = largest_of(x, begin, end, num_in, &flaw);
    const bool is_fit = largest > 0.0f;
    const simd::F inverse = simd::set1(is_fit ? most / largest : 0.0f);
    simd::F total = simd::zero();
    const int step = by_planes ? PANEL : PANEL * bits / 8;
    for (int k = begin; k < end; k += PANEL, out += step) {
        const simd::F v = is_fit ? inputs_from(x, k, num_in) : simd::zero();
        const simd::I rounded = simd::round_int(simd::mul(v, inverse));
        total = simd::add(total, simd::to_float(rounded));
        if (bits == 8)
            simd::store_s8(reinterpret_cast<int8_t*>(out), rounded);
        else if (by_planes)
            simd::store_planes(out, out + (end - begin), rounded);
        else
            simd::store_s16(out, rounded);
    }
    *scale = is_fit ? largest / most : flaw;
    return simd::sum(total);  // exact: integers below 2^24
}

// Converts a group of inputs for a block format. Their sum is stored next to their scale: multiplied by the scale if
// the format has minima, else by -offset, the offset of the codes.
void prepare_block_group(const float* x, int begin, int num_in, const BlockLayout& layout, int rounded_to, int bits,
                         bool by_planes, char* out) {
    float scale;
    const float most = rounded_to == 8 ? INT8_MOST : INT16_MOST;
    const float sum = prepare_group(x, begin, begin + layout.group, num_in, most, bits, by_planes, out + 8, &scale);
    const float scaled = scale * sum;
    const int32_t start = -layout.offset * static_cast<int32_t>(sum);
    std::memcpy(out, &scale, 4);
    std::memcpy(out + 4, layout.has_minima ? static_cast<const void*>(&scaled) : &start, 4);
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
                for (int g = 0; g < num_groups; g++, values += linear.group * bits / 8)
                    sums[g] = static_cast<int32_t>(prepare_group(row, g * linear.group, (g + 1) * linear.group, num_in,
                                                                 INT8_MOST, bits, false, values, scales + g));
                break;
            }
            default: {
                const BlockLayout& layout = layout_of(linear.format);
                for (int k = 0; k < padded_in; k += layout.group, values += out.group_stride)
                    prepare_block_group(row, k, num_in, layout, linear.input_bits, bits, out.by_planes, values);
            }
        }
    }
}

}  // namespace
}  // namespace forerun::FORERUN_TIER
