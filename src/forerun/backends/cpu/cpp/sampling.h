// Sampling: the token with the largest total of score / temperature + noise, and the top-k of a draft.
//
// The noise is Gumbel noise from a hash of the token, see forerun.sampling.noise, and is exact in float64. Computed in
// lanes of float32 its error is about 2e-6. To choose a token, it is computed only where a cheap upper bound says that
// it may matter, and then exactly for the few tokens that may still be among the best two. So the chosen token is the
// one of the exact formula.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace forerun {
namespace {

constexpr float NOISE_ERROR = 1e-5f;  // upper bound for lane_noise
constexpr float NO_TOTAL = -__builtin_inff();
constexpr float MOST_FLOAT = 3.402823466e38f;

inline simd::F fill_behind(simd::F a, int n, float rest) {
    float lanes[16];
    for (float& lane : lanes) lane = rest;
    simd::store_n(lanes, a, n);
    return simd::load(lanes);
}

inline void store_first(float* p, simd::F a, int n) {
    n < 16 ? simd::store_n(p, a, n) : simd::store(p, a);
}

inline int32_t signed32(uint32_t x) { return static_cast<int32_t>(x); }

inline uint32_t mix32(uint32_t x) {
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= x >> 15;
    x *= 0xD35A2D97u;
    return x ^ x >> 15;
}

inline float exact_noise(int token, RowNoise noise) {
    const uint32_t low = static_cast<uint32_t>(token) * 0x9E3779B1u + static_cast<uint32_t>(noise.low);
    const uint32_t bits = mix32(mix32(low) ^ static_cast<uint32_t>(noise.high));
    const double uniform = (static_cast<double>(signed32(bits)) + 2147483648.5) * 0x1p-32;
    return static_cast<float>(-std::log(-std::log(uniform)));
}

inline simd::I mix32(simd::I x) {
    x = simd::xor_int(x, simd::shift_right<16>(x));
    x = simd::mul_int(x, simd::set1_int(0x21F0AAAD));
    x = simd::xor_int(x, simd::shift_right<15>(x));
    x = simd::mul_int(x, simd::set1_int(signed32(0xD35A2D97u)));
    return simd::xor_int(x, simd::shift_right<15>(x));
}

// -log(-log(u)) for the noise's bits. For u near 1, where -log(u) is small, it is computed from 1 - u, which is exact.
inline simd::F lane_noise(simd::I bits) {
    const simd::Mask is_low = simd::less(simd::to_float(bits), simd::zero());  // u < 1/2
    const simd::I flipped = simd::select_int(is_low, bits, simd::xor_int(bits, simd::set1_int(-1)));
    const simd::F whole = simd::to_float(simd::and_int(flipped, simd::set1_int(0x7fffffff)));
    const simd::F to_end = simd::mul(simd::add(whole, simd::set1(0.5f)), simd::set1(0x1p-32f));  // u or 1 - u
    const simd::F u = simd::select(is_low, to_end, simd::sub(simd::set1(1.0f), to_end));
    const simd::Mask is_near_1 = simd::less(simd::set1(0.7072f), u);
    simd::F fraction;
    const simd::F exponent = simd::split(u, &fraction);
    const simd::F log_u = simd::log_split(simd::select(is_near_1, simd::zero(), exponent),
                                          simd::select(is_near_1, simd::sub(simd::zero(), to_end), fraction));
    return simd::sub(simd::zero(), simd::log(simd::sub(simd::zero(), log_u)));
}

// An upper bound of the noise that is tight for large noise: -log(-log(u)) <= -log(1 - u), and the bits of a float give
// a piecewise linear lower bound of its logarithm.
inline simd::F noise_bound(simd::I bits) {
    const simd::I half = simd::shift_right<1>(simd::xor_int(bits, simd::set1_int(0x7fffffff)));  // 1 - u, truncated
    const simd::F below = simd::add(simd::to_float(half), simd::set1(0.25f));
    return simd::fma(simd::to_float(simd::bits(below)), simd::set1(-0.693147181f * 0x1p-23f), simd::set1(109.5174f));
}

// Totals of tokens, sixteen at a time.
struct Totals {
    const float* scores;
    float temperature;
    RowNoise noise;
    const int32_t* ids;  // the tokens of the scores; null for 0, 1, ...
    simd::I hashed;  // token * 0x9E3779B1 + low for the lanes from token 0

    Totals(const float* scores, float temperature, RowNoise noise, const int32_t* ids = nullptr)
        : scores(scores), temperature(temperature), noise(noise), ids(ids) {
        int32_t lanes[16];
        for (int i = 0; i < 16; i++)
            lanes[i] = signed32(static_cast<uint32_t>(i) * 0x9E3779B1u + static_cast<uint32_t>(noise.low));
        hashed = simd::load_int(lanes);
    }
    bool are_scores() const { return temperature == 1.0f && !noise.is_noisy; }

    // Without noise. Lanes from n on are minus infinity.
    simd::F plain(int token, int n) const {
        simd::F total = n < 16 ? fill_behind(simd::load_n(scores + token, n), n, NO_TOTAL) : simd::load(scores + token);
        return temperature != 1.0f ? simd::div(total, simd::set1(temperature)) : total;
    }
    simd::I noise_bits(int token, int n) const {
        const int32_t first = signed32(static_cast<uint32_t>(token) * 0x9E3779B1u);
        const simd::I low = ids ? hashed_ids(token, n) : simd::add_int(hashed, simd::set1_int(first));
        return mix32(simd::xor_int(mix32(low), simd::set1_int(noise.high)));
    }
    simd::F at(int token, int n) const {
        const simd::F total = plain(token, n);
        if (!noise.is_noisy || !simd::to_bits(simd::less(simd::set1(NO_TOTAL), total))) return total;
        return simd::add(total, lane_noise(noise_bits(token, n)));
    }
    float exactly(int token) const {
        const float score = temperature != 1.0f ? scores[token] / temperature : scores[token];
        return noise.is_noisy ? score + exact_noise(ids ? ids[token] : token, noise) : score;
    }

private:
    simd::I hashed_ids(int token, int n) const {
        int32_t few[16] = {};
        if (n < 16) std::memcpy(few, ids + token, static_cast<size_t>(n) * sizeof(int32_t));
        const simd::I lanes = simd::load_int(n < 16 ? few : ids + token);
        return simd::add_int(simd::mul_int(lanes, simd::set1_int(signed32(0x9E3779B1u))), simd::set1_int(noise.low));
    }
};

// The two best totals of each of sixteen lanes.
struct LaneTopTwo {
    simd::F best = simd::set1(NO_TOTAL), second = simd::set1(NO_TOTAL);

    void see(simd::F totals) {
        second = simd::max(second, simd::min(best, totals));
        best = simd::max(best, totals);
    }
};

// The token of the first NaN, else of the first infinity.
inline TopTwo fault_among(const Totals& totals, int begin, int end) {
    TopTwo top_two{begin, NO_TOTAL, NO_TOTAL};
    for (int token = begin; token < end; token++) {
        const float score = totals.exactly(token);
        if (score != score) return {token, score, score};
        if (score > top_two.best) top_two = {token, score, score};
    }
    return top_two;
}

// The best two by exact total, among the tokens whose approximate total reaches `threshold`.
inline TopTwo exact_top_two(const Totals& totals, const float* approximate, int begin, int end, float threshold) {
    TopTwo top_two{begin, NO_TOTAL, NO_TOTAL};
    for (int token = begin; token < end; token += 16) {
        const int n = end - token < 16 ? end - token : 16;
        const float* of_lanes = approximate + (token - begin);
        const simd::F lanes = n < 16 ? simd::load_n(of_lanes, n) : simd::load(of_lanes);
        uint32_t hits = simd::to_bits(simd::less_equal(simd::set1(threshold), lanes)) & ((1u << n) - 1u);
        for (; hits; hits &= hits - 1) {
            const int hit = token + __builtin_ctz(hits);
            const float total = totals.exactly(hit);
            if (total > top_two.best)
                top_two = {hit, total, top_two.best};
            else if (total > top_two.second)
                top_two.second = total;
        }
    }
    return top_two;
}

// The least total of a token that may be one of the best two, if totals have an error of at most `error`.
inline float threshold_of(const LaneTopTwo& lanes, float error) {
    float totals[32], best = NO_TOTAL, second = NO_TOTAL;
    simd::store(totals, lanes.best);
    simd::store(totals + 16, lanes.second);
    for (const float total : totals) {
        const float lesser = total > best ? best : total;
        best = total > best ? total : best;
        second = lesser > second ? lesser : second;
    }
    const float size = std::fabs(best) > std::fabs(second) ? std::fabs(best) : std::fabs(second);
    const float threshold = error > 0.0f ? second - 2 * (error + size * 0x1p-22f) : second;
    return threshold >= -MOST_FLOAT ? threshold : NO_TOTAL;
}

// Writes approximate totals of a row with noise to scratch, and minus infinity for tokens that cannot be among the best
// two. Returns the least total of those that can.
inline float survey_noisy(const Totals& totals, int begin, int end, float* scratch) {
    LaneTopTwo lanes;
    float threshold = NO_TOTAL;
    for (int token = begin; token < end; token += 16) {
        const int n = end - token < 16 ? end - token : 16;
        const simd::F plain = totals.plain(token, n);
        const simd::I bits = totals.noise_bits(token, n);
        simd::F total = simd::set1(NO_TOTAL);
        if (simd::to_bits(simd::less(simd::set1(threshold), simd::add(plain, noise_bound(bits))))) {
            total = simd::add(plain, lane_noise(bits));
            lanes.see(total);
            threshold = threshold_of(lanes, NOISE_ERROR);
        }
        store_first(scratch + (token - begin), total, n);
    }
    return threshold;
}

inline float survey_plain(const Totals& totals, int begin, int end, float* scratch) {
    LaneTopTwo lanes;
    for (int token = begin; token < end; token += 16) {
        const int n = end - token < 16 ? end - token : 16;
        const simd::F total = totals.plain(token, n);
        lanes.see(total);
        if (scratch) store_first(scratch + (token - begin), total, n);
    }
    return threshold_of(lanes, 0.0f);
}

// True if the scores have no NaN and no plus infinity.
inline bool are_numbers(const float* scores, int begin, int end) {
    bool are = true;
    for (int token = begin; token < end; token += 16) {
        const int n = end - token < 16 ? end - token : 16;
        const simd::F lanes = n < 16 ? simd::load_n(scores + token, n) : simd::load(scores + token);
        are &= simd::to_bits(simd::less_equal(lanes, simd::set1(MOST_FLOAT))) == 0xffffu;
    }
    return are;
}

inline TopTwo sample(const float* scores, int begin, int end, float temperature, RowNoise noise, float* scratch) {
    const Totals totals(scores, temperature, noise);
    if (!are_numbers(scores, begin, end)) return fault_among(totals, begin, end);
    const bool are_scores = totals.are_scores();
    const float threshold = noise.is_noisy ? survey_noisy(totals, begin, end, scratch)
                                           : survey_plain(totals, begin, end, are_scores ? nullptr : scratch);
    return exact_top_two(totals, are_scores ? scores + begin : scratch, begin, end,
                         threshold > NO_TOTAL ? threshold : -MOST_FLOAT);  // otherwise at most one token remains
}

// The top-k so far, best first, ties by token.
struct TopK {
    int32_t* tokens;
    float* totals;
    int count, length;

    void see(int token, float total) {
        int place = length < count ? length++ : count;
        if (place == count && !(total > totals[--place])) return;
        for (; place > 0 && total > totals[place - 1]; place--) {
            totals[place] = totals[place - 1];
            tokens[place] = tokens[place - 1];
        }
        totals[place] = total;
        tokens[place] = token;
    }
};

// A total that at least `count` <= 16 tokens reach: the count-th largest of the maxima of the lanes.
inline float reached_by(simd::F best, int count) {
    float lanes[16];
    simd::store(lanes, best);
    for (int i = 1; i < 16; i++)
        for (int j = i; j > 0 && lanes[j] > lanes[j - 1]; j--) {
            const float lane = lanes[j];
            lanes[j] = lanes[j - 1];
            lanes[j - 1] = lane;
        }
    return lanes[count - 1];
}

inline float topk(const float* scores, int size, float temperature, RowNoise noise, const int32_t* ids, int count,
                  int32_t* tokens, float* totals, float* scratch) {
    const Totals all(scores, temperature, noise, ids);
    const float* approximate = all.are_scores() ? scores : scratch;
    simd::F best = simd::set1(NO_TOTAL);
    for (int token = 0; token < size; token += 16) {
        const int n = size - token < 16 ? size - token : 16;
        const simd::F lanes = all.at(token, n);
        if (approximate == scratch) store_first(scratch + token, lanes, n);
        best = simd::max(lanes, best);
    }
    for (int i = 0; i < count; i++) {
        tokens[i] = 0;
        totals[i] = NO_TOTAL;
    }
    const float largest = simd::max_of(best), threshold = reached_by(best, count);
    TopK top_k{tokens, totals, count, 0};
    simd::F sum = simd::zero();
    for (int token = 0; token < size; token += 16) {
        const int n = size - token < 16 ? size - token : 16;
        const simd::F lanes = n < 16 ? fill_behind(simd::load_n(approximate + token, n), n, NO_TOTAL)
                                     : simd::load(approximate + token);
        sum = simd::add(sum, simd::exp(simd::sub(lanes, simd::set1(largest))));
        const simd::Mask reach = top_k.length < count ? simd::less_equal(simd::set1(threshold), lanes)
                                                       : simd::less(simd::set1(totals[count - 1]), lanes);
        for (uint32_t hits = simd::to_bits(reach) & ((1u << n) - 1u); hits; hits &= hits - 1) {
            const int lane = __builtin_ctz(hits);
            top_k.see(token + lane, approximate[token + lane]);
        }
    }
    for (int i = 0; ids && i < count; i++) tokens[i] = ids[tokens[i]];
    return largest + std::log(simd::sum(sum));
}

}  // namespace
}  // namespace forerun
