// Rows of activations in the form that a linear reads.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace forerun {
namespace {

constexpr float INT8_MOST = 127.0f;
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

// A group with an infinity or a NaN gets the scale NaN, which shows in every output of its row.
float prepare_group(const float* x, int begin, int end, int num_in, int8_t* out, int32_t* sum) {
    simd::F most = simd::zero(), poison = simd::zero();
    for (int k = begin; k < end; k += PANEL) {
        const simd::F v = inputs_from(x, k, num_in);
        most = simd::max(most, absolute(v));
        poison = simd::fma(v, simd::zero(), poison);
    }
    const float largest = simd::max_of(most), flaw = simd::sum(poison);
    const bool is_fit = largest >= TINIEST && flaw == 0.0f;
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
            }
        }
    }
}

}  // namespace
}  // namespace forerun
