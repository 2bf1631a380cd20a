// The two products of attention, queries with keys and weights with values, in blocks that fit into the registers.
//
// Each score has its own lane and is summed over head_dim in ascending order. Each element of the weighted sum has its
// own lane and is summed over logical positions in ascending order. So neither depends on how many queries, slots or
// vectors a block has.
#pragma once
#include "attention_scratch.h"
#include "simd.h"

namespace forerun {
namespace {

inline simd::F widen(const int8_t* p) { return simd::load_s8(p); }
inline simd::F widen_n(const int8_t* p, int n) {
    int8_t codes[16] = {};
    __builtin_memcpy(codes, p, static_cast<unsigned>(n));
    return simd::load_s8(codes);
}
inline simd::F widen(const float* p) { return simd::load(p); }
inline simd::F widen(const uint16_t* p) { return simd::load_bf16(p); }
inline simd::F widen_n(const float* p, int n) { return simd::load_n(p, n); }
inline simd::F widen_n(const uint16_t* p, int n) { return simd::load_bf16_n(p, n); }

// The sums of one query with sixteen keys, and the scores that they become.
struct FloatScores {
    using Sum = simd::F;
    float scale;
    FloatScores(float scale) : scale(scale) {}  // of the products
    Sum start(int) const { return simd::zero(); }
    simd::F score(Sum sum, int, int) const { return simd::mul(sum, simd::set1(scale)); }
    FloatScores from(int, int) const { return *this; }
};
struct CodeScores {  // exact sums of integers, so their order does not matter
    using Sum = simd::Dots;
    const QueryRounding* queries;
    const float* keys;  // scales
    Sum start(int query) const { return simd::to_dots(simd::set1_int(-queries[query].excess)); }
    simd::F score(Sum sum, int query, int key) const {
        return simd::mul(simd::mul(simd::to_float(sum), simd::load(keys + key)), simd::set1(queries[query].scale));
    }
    CodeScores from(int query, int key) const { return {queries + query, keys + key}; }
};

// A word of sixteen transposed keys, the format of the queries, and the function that adds their product to a sum.
template <typename E> struct Word;
template <> struct Word<int8_t> {
    static constexpr int VECTORS = 1;
    using Input = int16_t;
    using Scores = CodeScores;
    simd::Codes keys;
    explicit Word(const int32_t* p) : keys(simd::split(simd::codes_of_signed(simd::load_bytes(p)))) {}
    simd::Dots dot(simd::Dots sum, const Input* query) const {
        return simd::dot_s16(sum, keys, reinterpret_cast<const char*>(query));
    }
    static int query_size(int head_dim) { return (head_dim + 15) / 16 * 16; }
};
template <> struct Word<float> {
    using Scores = FloatScores;
    static constexpr int VECTORS = 1;  // of the transposed keys
    using Input = float;
    simd::F keys;
    explicit Word(const int32_t* p) : keys(simd::load(reinterpret_cast<const float*>(p))) {}
    simd::F dot(simd::F sum, const Input* query) const { return simd::fma(keys, simd::set1(*query), sum); }
    static void store_inputs(Input* to, simd::F a) { simd::store(to, a); }
    static int query_size(int head_dim) { return head_dim; }
};
template <bool AS_THEY_ARE> struct Bf16Word;
template <> struct Bf16Word<true> {
    static constexpr int VECTORS = 1;
    simd::Bytes keys;
    explicit Bf16Word(const int32_t* p) : keys(simd::load_bytes(p)) {}
    simd::F dot(simd::F sum, const simd::Bf16Input* query) const { return simd::dot_bf16(sum, keys, query); }
};
template <> struct Bf16Word<false> {  // widened once for all queries; odd ones first, as dot_bf16 does
    static constexpr int VECTORS = 2;
    simd::F even, odd;
    explicit Bf16Word(const int32_t* p)
        : even(simd::load(reinterpret_cast<const float*>(p))),
          odd(simd::load(reinterpret_cast<const float*>(p + TILE_SLOTS))) {}
    simd::F dot(simd::F sum, const float* query) const {
        return simd::fma(even, simd::set1(query[0]), simd::fma(odd, simd::set1(query[1]), sum));
    }
};
template <> struct Word<uint16_t> : Bf16Word<simd::HAS_BF16_DOT> {
    using Input = simd::Bf16Input;
    using Scores = FloatScores;
    explicit Word(const int32_t* p) : Bf16Word<simd::HAS_BF16_DOT>(p) {}
    static void store_inputs(Input* to, simd::F a) { simd::store_bf16_inputs(to, a); }
    static int query_size(int head_dim) { return head_dim; }
};
template <typename E> using Query = typename Word<E>::Input;
template <typename E> using Scores = typename Word<E>::Scores;

// scores[q][16 k + lane] for NQ queries and NK times sixteen transposed keys.
template <int NQ, int NK, typename E>
void score_block(const Query<E>* queries, int head_dim, const int32_t* keys, Scores<E> as, float* scores, int stride) {
    constexpr int ELEMENTS = 4 / sizeof(E);  // of a word
    const int query_size = Word<E>::query_size(head_dim);
    typename Scores<E>::Sum sums[NQ][NK];
    FORERUN_UNROLL
    for (int q = 0; q < NQ; q++)
        FORERUN_UNROLL
        for (int k = 0; k < NK; k++) sums[q][k] = as.start(q);
    for (int i = 0; i < head_dim; i += ELEMENTS, keys += Word<E>::VECTORS * TILE_SLOTS) {
        FORERUN_UNROLL
        for (int k = 0; k < NK; k++) {
            const Word<E> word(keys + PANEL * k);
            FORERUN_UNROLL
            for (int q = 0; q < NQ; q++) sums[q][k] = word.dot(sums[q][k], queries + q * query_size + i);
        }
    }
    FORERUN_UNROLL
    for (int q = 0; q < NQ; q++)
        FORERUN_UNROLL
        for (int k = 0; k < NK; k++)
            simd::store(scores + q * stride + PANEL * k, as.score(sums[q][k], q, PANEL * k));
}

template <int NQ, typename E>
void score_vectors(const Query<E>* queries, int head_dim, const int32_t* keys, int num_vectors, Scores<E> as,
                   float* scores, int stride) {
    int k = 0;
    for (; k + simd::BLOCK_VECTORS <= num_vectors; k += simd::BLOCK_VECTORS)
        score_block<NQ, simd::BLOCK_VECTORS, E>(queries, head_dim, keys + PANEL * k, as.from(0, PANEL * k),
                                                scores + PANEL * k, stride);
    for (; k < num_vectors; k++)
        score_block<NQ, 1, E>(queries, head_dim, keys + PANEL * k, as.from(0, PANEL * k), scores + PANEL * k, stride);
}

// Scores of at most NQ queries with a tile of num_vectors times sixteen keys.
template <typename E, int NQ = simd::BLOCK_QUERIES>
void score_tile(int num_queries, const Query<E>* queries, int head_dim, const int32_t* keys, int num_vectors,
                Scores<E> as, float* scores, int stride) {
    if (num_queries == NQ)
        score_vectors<NQ, E>(queries, head_dim, keys, num_vectors, as, scores, stride);
    else if constexpr (NQ > 1)
        score_tile<E, NQ - 1>(num_queries, queries, head_dim, keys, num_vectors, as, scores, stride);
}

// Values of one head at the listed slots, or at `count` consecutive slots if `slots` is null.
template <typename E> struct Values {
    const E* first;        // of slot 0
    int64_t slot_stride;  // elements
    const int32_t* slots;
    int begin, count;
    int64_t ahead;  // prefetch distance in elements, or 0

    const E* at(int i) const { return first + (slots ? slots[i] : begin + i) * slot_stride; }
};

// mixed[q][d] += sum over i of weights[q][i] values[i][d] for NV vectors of dimensions from `d` on; the last one, if
// it is the only one, may have fewer than 16 lanes.
template <int NQ, int NV, bool IS_WHOLE, typename E>
void mix_block(const Values<E>& values, const float* weights, float* const* mixed, int d, int lanes) {
    simd::F sums[NQ][NV];
    FORERUN_UNROLL
    for (int q = 0; q < NQ; q++)
        FORERUN_UNROLL
        for (int v = 0; v < NV; v++)
            sums[q][v] = IS_WHOLE ? simd::load(mixed[q] + d + 16 * v) : simd::load_n(mixed[q] + d, lanes);
    for (int i = 0; i < values.count; i++) {
        const E* of_slot = values.at(i) + d;
        if (values.ahead)
            for (int line = 0; line < 16 * NV; line += 64 / static_cast<int>(sizeof(E)))
                simd::prefetch(of_slot + values.ahead + line);
        FORERUN_UNROLL
        for (int v = 0; v < NV; v++) {
            const simd::F value = IS_WHOLE ? widen(of_slot + 16 * v) : widen_n(of_slot, lanes);
            FORERUN_UNROLL
            for (int q = 0; q < NQ; q++)
                sums[q][v] = simd::fma(value, simd::set1(weights[q * SCORE_STRIDE + i]), sums[q][v]);
        }
    }
    FORERUN_UNROLL
    for (int q = 0; q < NQ; q++)
        FORERUN_UNROLL
        for (int v = 0; v < NV; v++)
            IS_WHOLE ? simd::store(mixed[q] + d + 16 * v, sums[q][v]) : simd::store_n(mixed[q] + d, sums[q][v], lanes);
}

template <int NV, bool IS_WHOLE, typename E, int NQ = simd::BLOCK_QUERIES>
void mix_queries(const Values<E>& values, int num_queries, const float* weights, float* const* mixed, int d,
                 int lanes) {
    if (num_queries == NQ)
        mix_block<NQ, NV, IS_WHOLE>(values, weights, mixed, d, lanes);
    else if constexpr (NQ > 1)
        mix_queries<NV, IS_WHOLE, E, NQ - 1>(values, num_queries, weights, mixed, d, lanes);
}

// At most BLOCK_QUERIES queries and BLOCK_VECTORS vectors from dimension d on; returns the next dimension to do.
template <typename E>
int mix_some(const Values<E>& values, int num_queries, const float* weights, float* const* mixed, int d, int head_dim) {
    const int left = head_dim - d;
    if (left >= PANEL * simd::BLOCK_VECTORS) {
        mix_queries<simd::BLOCK_VECTORS, true>(values, num_queries, weights, mixed, d, PANEL);
        return d + PANEL * simd::BLOCK_VECTORS;
    }
    if (left >= PANEL)
        mix_queries<1, true>(values, num_queries, weights, mixed, d, PANEL);
    else
        mix_queries<1, false>(values, num_queries, weights, mixed, d, left);
    return d + PANEL;
}

}  // namespace
}  // namespace forerun
