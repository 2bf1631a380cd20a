// Operations on rows between the products: norm, gate, and rope with the append to the cache.
#pragma once
#include "kernels.h"
#include "rounding.h"
#include "simd.h"

namespace forerun {
namespace {

// 1 / sqrt(mean(x^2) + eps), summed in a fixed order: 64 lanes, then these.
inline float norm_scale(const float* x, int size, float eps) {
    simd::F sums[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
    int i = 0;
    for (; i + 64 <= size; i += 64) {
        FORERUN_UNROLL
        for (int k = 0; k < 4; k++) {
            const simd::F part = simd::load(x + i + 16 * k);
            sums[k] = simd::fma(part, part, sums[k]);
        }
    }
    for (; i < size; i += 16) {
        const simd::F part = i + 16 <= size ? simd::load(x + i) : simd::load_n(x + i, size - i);
        sums[0] = simd::fma(part, part, sums[0]);
    }
    const float squares = simd::sum(simd::add(simd::add(sums[0], sums[1]), simd::add(sums[2], sums[3])));
    return 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps);
}

inline void rms_norm(const float* x, int64_t x_stride, const float* weight, int size, float eps, int t_begin, int t_end,
                     float* y, int64_t y_stride) {
    for (int t = t_begin; t < t_end; t++) {
        const float* from = x + t * x_stride;
        float* to = y + t * y_stride;
        const simd::F scale = simd::set1(norm_scale(from, size, eps));
        int i = 0;
        for (; i + 16 <= size; i += 16)
            simd::store(to + i, simd::mul(simd::mul(simd::load(from + i), scale), simd::load(weight + i)));
        if (const int n = size - i; n > 0)
            simd::store_n(to + i, simd::mul(simd::mul(simd::load_n(from + i, n), scale), simd::load_n(weight + i, n)),
                          n);
    }
}

inline simd::F gated(simd::F gate, simd::F up) {
    const simd::F below = simd::add(simd::set1(1.0f), simd::exp(simd::sub(simd::zero(), gate)));
    return simd::mul(simd::div(gate, below), up);
}

// Applies `gated` to gate and up of every row.
template <typename Gated>
void gate_mul(const float* gates, int64_t gate_stride, const float* ups, int64_t up_stride, int size, int t_begin,
              int t_end, float* y, Gated gated) {
    for (int t = t_begin; t < t_end; t++) {
        const float* gate = gates + t * gate_stride;
        const float* up = ups + t * up_stride;
        float* to = y + static_cast<int64_t>(t) * size;
        int i = 0;
        for (; i + 16 <= size; i += 16) simd::store(to + i, gated(simd::load(gate + i), simd::load(up + i)));
        if (const int n = size - i; n > 0)
            simd::store_n(to + i, gated(simd::load_n(gate + i, n), simd::load_n(up + i, n)), n);
    }
}

inline void silu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int size, int t_begin,
                     int t_end, float* y) {
    gate_mul(gate, gate_stride, up, up_stride, size, t_begin, t_end, y, gated);
}

inline void gelu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int size, int t_begin,
                     int t_end, float* y) {
    gate_mul(gate, gate_stride, up, up_stride, size, t_begin, t_end, y,
             [](simd::F a, simd::F b) { return simd::mul(simd::gelu(a), b); });
}

inline void sigmoid_mul(float* x, int size, const float* gate, int gate_size, int t_begin, int t_end) {
    const auto share = [](simd::F a) {
        return simd::div(simd::set1(1.0f), simd::add(simd::set1(1.0f), simd::exp(simd::sub(simd::zero(), a))));
    };
    for (int t = t_begin; t < t_end; t++) {
        float* to = x + static_cast<int64_t>(t) * size;
        const float* from = gate + static_cast<int64_t>(t) * gate_size;
        const simd::F of_row = share(simd::set1(from[0]));
        for (int i = 0; i < size; i += 16) {
            const int n = size - i < 16 ? size - i : 16;
            const simd::F factor = gate_size == 1 ? of_row : share(n == 16 ? simd::load(from + i) : simd::load_n(from + i, n));
            if (n == 16)
                simd::store(to + i, simd::mul(simd::load(to + i), factor));
            else
                simd::store_n(to + i, simd::mul(simd::load_n(to + i, n), factor), n);
        }
    }
}

// One head rotated by rope: y[i] = x[i] cos[i] + x[(i + D/2) mod D] sin[i], where x is first multiplied by scale and
// weight if there is a norm.
struct Rotation {
    const float *x, *weight, *cosines, *sines;  // weight null: no norm
    float scale, factor;  // of the norm; of the result
    int half;

    simd::F load(int i, int n) const {  // x from i on, normalized
        const simd::F plain = table(x, i, n);
        return weight ? simd::mul(simd::mul(plain, simd::set1(scale)), table(weight, i, n)) : plain;
    }
    static simd::F table(const float* row, int i, int n) {
        return n == 16 ? simd::load(row + i) : simd::load_n(row + i, n);
    }
    simd::F left(int i, int n) const {
        return simd::mul(simd::fma(load(i, n), table(cosines, i, n), simd::mul(load(i + half, n), table(sines, i, n))),
                         simd::set1(factor));
    }
    simd::F right(int i, int n) const {
        return simd::mul(simd::fma(load(i + half, n), table(cosines, i + half, n),
                                   simd::mul(load(i, n), table(sines, i + half, n))),
                         simd::set1(factor));
    }
};

// Elements of a row in a cache of this format; `rounding` is used for int8.
inline void put(void* to, CacheFormat format, const Rounding& rounding, int64_t i, simd::F a, int n) {
    if (format == CacheFormat::bf16) {
        uint16_t* place = static_cast<uint16_t*>(to) + i;
        n == 16 ? simd::store_bf16(place, a) : simd::store_bf16_n(place, a, n);
    } else if (format == CacheFormat::int8) {
        int8_t* place = static_cast<int8_t*>(to) + i;
        int8_t codes[16];
        simd::store_s8(n == 16 ? place : codes, rounding.codes(a));
        if (n < 16) __builtin_memcpy(place, codes, static_cast<unsigned>(n));
    } else {
        float* place = static_cast<float*>(to) + i;
        n == 16 ? simd::store(place, a) : simd::store_n(place, a, n);
    }
}

// Stores a row of a head from element `first` on. each(use) calls use(i, a, n) for the n elements of the row from i on; in
// int8 it runs twice, since the codes depend on the largest element.
template <typename Each>
void put_row(void* to, CacheFormat format, int64_t first, int size, Each each) {
    Rounding rounding{};
    if (format == CacheFormat::int8) {
        Largest largest;
        each([&](int, simd::F a, int) { largest.add(a); });
        rounding = largest.rounding(MOST_CODE);
        __builtin_memcpy(static_cast<char*>(to) + first + size, &rounding.scale, sizeof rounding.scale);
    }
    each([&](int i, simd::F a, int n) { put(to, format, rounding, first + i, a, n); });
}

// `to` and x must not overlap.
inline void rotate(const Rotation& head, void* to, CacheFormat format, int64_t first) {
    put_row(to, format, first, 2 * head.half, [&](auto use) {
        for (int i = 0; i < head.half; i += 16) {
            const int n = head.half - i < 16 ? head.half - i : 16;
            use(i, head.left(i, n), n);
            use(head.half + i, head.right(i, n), n);
        }
    });
}

// Stores a head's value times `scale` at place `to` of the cache.
inline void put_value(const float* x, int size, float scale, LayerCache cache, int64_t to) {
    put_row(cache.values, cache.format, to, size, [&](auto use) {
        for (int i = 0; i < size; i += 16) {
            const int n = size - i < 16 ? size - i : 16;
            const simd::F plain = n == 16 ? simd::load(x + i) : simd::load_n(x + i, n);
            use(i, simd::mul(plain, simd::set1(scale)), n);
        }
    });
}

inline void rope_append(const float* qkv, int row, int head_begin, int head_end, Heads heads, const float* cos_sin,
                        int position, const float* q_norm, const float* k_norm, bool norms_values, float eps,
                        float query_scale, float* q, LayerCache cache, int slot) {
    const int size = heads.head_dim, num_kv = heads.num_kv_heads;
    const int64_t stored = row_size(cache.format, size);
    const float* of_row = qkv + static_cast<int64_t>(row) * (heads.num_heads + 2 * num_kv) * size;
    const float* cosines = cos_sin + static_cast<int64_t>(position) * 2 * size;
    for (int head = head_begin; head < head_end; head++) {
        const float* x = of_row + static_cast<int64_t>(head) * size;
        const int kv_head = head - heads.num_heads;
        const bool is_query = kv_head < 0;
        const int64_t of_slot = slot * cache.slot_stride;
        if (kv_head >= num_kv) {
            const float scale = norms_values ? norm_scale(x, size, eps) : 1.0f;
            put_value(x, size, scale, cache, of_slot + (kv_head - num_kv) * stored);
            continue;
        }
        const float* weight = is_query ? q_norm : k_norm;
        const float scale = weight ? norm_scale(x, size, eps) : 1.0f;
        const Rotation rotation{x, weight, cosines, cosines + size, scale, is_query ? query_scale : 1.0f, size / 2};
        if (is_query)
            rotate(rotation, q, CacheFormat::f32, (static_cast<int64_t>(row) * heads.num_heads + head) * size);
        else
            rotate(rotation, cache.keys, cache.format, of_slot + kv_head * stored);
    }
}

}  // namespace
}  // namespace forerun
