// Rows of activations in the form that a linear reads.
#pragma once
#include <cstring>

#include "blocks.h"
#include "kernels.h"
#include "simd.h"

namespace forerun {
namespace {

constexpr float INT8_MOST = 127.0f;
constexpr float INT16_MOST = 127 * 256 + 127;  // its high byte, rounded, and its low byte are both int8
constexpr float TINIEST = 1e-30f;  // a group whose largest input is below this counts as zeros

simd::F absolute(simd::F x) { return simd::max(x, simd::sub(simd::zero(), x)); }

// Sixteen inputs from `k` on; those behind the last are 0.
simd::F inputs_from(const float* x, int k, int num_in) {
    const int left = num_in - k;
    return left >= PANEL ? simd::load(x + k) : left > 0 ? simd::load_n(x + k, left) : simd::zero();
}

void prepare_float(const float* x, int num_in, int padded_in, float* out) {
    int k = 0;
    for (; k + PANEL <= padded_in; k += PANEL) simd::store(out + k, inputs_from(x, k, num_in));
    if (k < padded_in) simd::store_n(out + k, inputs_from(x, k, num_in), padded_in - k);
}

void prepare_bf16(const float* x, int num_in, int padded_in, uint16_t* out) {
    int k = 0;
    for (; k + PANEL <= padded_in; k += PANEL) simd::store_bf16(out + k, inputs_from(x, k, num_in));
    if (k == padded_in) return;
    uint16_t tail[PANEL];
    simd::store_bf16(tail, inputs_from(x, k, num_in));
    for (int i = 0; k + i < padded_in; i++) out[k + i] = tail[i];
}

// The largest of a group of inputs, without its sign; where one is no finite number, or where all of them count as
// zeros, 0 and what the group's scale is then: NaN, which shows in every output of the row, or 0.
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

float prepare_group(const float* x, int begin, int end, int num_in, int8_t* out, int32_t* sum) {
    float flaw;
    const float largest = largest_of(x, begin, end, num_in, &flaw);
    const bool is_fit = largest > 0.0f;
    const simd::F inverse = simd::set1(is_fit ? INT8_MOST / largest : 0.0f);
    simd::F total = simd::zero();
    for (int k = begin; k < end; k += PANEL) {
        const simd::F v = is_fit ? inputs_from(x, k, num_in) : simd::zero();
        const simd::I rounded = simd::round_int(simd::mul(v, inverse));
        simd::store_s8(out + k, rounded);
        total = simd::add(total, simd::to_float(rounded));
    }
    *sum = static_cast<int32_t>(simd::sum(total));  // exact: whole numbers below 2^24
    return is_fit ? largest / INT8_MOST : flaw;
}

// A group of inputs of a block format: whole numbers of 16 bits, in two planes. Their sum stands beside their scale:
// times the scale where minima are to be multiplied by it, else times -offset, what the offset of the codes takes away.
void prepare_block_group(const float* x, int begin, int num_in, const BlockLayout& layout, char* out) {
    float flaw;
    const float largest = largest_of(x, begin, begin + layout.group, num_in, &flaw);
    const bool is_fit = largest > 0.0f;
    const simd::F inverse = simd::set1(is_fit ? INT16_MOST / largest : 0.0f);
    int8_t* values = reinterpret_cast<int8_t*>(out + 8);
    simd::F total = simd::zero();
    for (int k = 0; k < layout.group; k += PANEL) {
        const simd::F v = is_fit ? inputs_from(x, begin + k, num_in) : simd::zero();
        const simd::I rounded = simd::round_int(simd::mul(v, inverse));
        total = simd::add(total, simd::to_float(rounded));
        const simd::I above = simd::shift_right<8>(simd::add_int(rounded, simd::set1_int(0x8080)));
        const simd::I high = simd::sub_int(above, simd::set1_int(128));  // the nearest multiple of 256
        simd::store_s8(values + k, high);
        simd::store_s8(values + layout.group + k, simd::sub_int(rounded, simd::shift_left<8>(high)));
    }
    const float scale = is_fit ? largest / INT16_MOST : flaw;
    const float sum = simd::sum(total);  // exact: whole numbers below 2^24
    const float scaled = scale * sum;
    const int32_t start = -layout.offset * static_cast<int32_t>(sum);
    std::memcpy(out, &scale, 4);
    std::memcpy(out + 4, layout.has_minima ? static_cast<const void*>(&scaled) : &start, 4);
}

void prepare(const Linear& linear, const float* x, int64_t x_stride, int t_begin, int t_end, Rows out) {
    const int num_in = linear.num_in, padded_in = linear.padded_in;
    for (int t = t_begin; t < t_end; t++) {
        const float* row = x + t * x_stride;
        char* values = static_cast<char*>(out.values) + t * out.stride;
        switch (static_cast<Format>(linear.format)) {
            case Format::f32:
            case Format::int8_wide: prepare_float(row, num_in, padded_in, reinterpret_cast<float*>(values)); break;
            case Format::bf16: prepare_bf16(row, num_in, padded_in, reinterpret_cast<uint16_t*>(values)); break;
            case Format::int8:
            case Format::int4: {
                const int num_groups = padded_in / linear.group;
                float* scales = out.scales + static_cast<int64_t>(t) * num_groups;
                int32_t* sums = out.sums + static_cast<int64_t>(t) * num_groups;
                for (int g = 0; g < num_groups; g++)
                    scales[g] = prepare_group(row, g * linear.group, (g + 1) * linear.group, num_in,
                                              reinterpret_cast<int8_t*>(values), sums + g);
                break;
            }
            default: {
                const BlockLayout& layout = layout_of(linear.format);
                for (int k = 0; k < padded_in; k += layout.group, values += out.group_stride)
                    prepare_block_group(row, k, num_in, layout, values);
            }
        }
    }
}

}  // namespace
}  // namespace forerun
