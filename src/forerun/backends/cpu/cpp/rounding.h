// Rounding of a row to integers with one scale: rows of a cache in int8, and the queries that are multiplied with them.
// model/cache_rows.py has the same operations.
#pragma once
#include "simd.h"

namespace forerun {
namespace {

constexpr int MOST_CODE = 127;
constexpr float LEAST_SIZE = 1e-30f;  // smaller rows count as zeros, as their inverse may be infinite

struct Rounding {
    float scale, inverse, most;
    simd::I codes(simd::F a) const {
        const simd::F scaled = simd::mul(a, simd::set1(inverse));
        return simd::round_int(simd::min(simd::max(scaled, simd::set1(-most)), simd::set1(most)));  // NaN: some code
    }
};

// The largest magnitude of a row.
class Largest {
   public:
    void add(simd::F a) {
        top_ = simd::max(simd::max(a, simd::sub(simd::zero(), a)), top_);
        faults_ = simd::fma(a, simd::zero(), faults_);
    }
    // The rounding to codes of at most this magnitude. The scale of a row with a NaN or an infinity is NaN.
    Rounding rounding(int most) const {
        const float size = simd::max_of(top_), fault = simd::sum(faults_), bound = static_cast<float>(most);
        if (!(fault == 0.0f)) return {fault, 0.0f, bound};
        return size < LEAST_SIZE ? Rounding{0.0f, 0.0f, bound} : Rounding{size / bound, bound / size, bound};
    }

   private:
    simd::F top_ = simd::zero(), faults_ = simd::zero();  // 0 times each element: NaN if it is not finite
};

}  // namespace
}  // namespace forerun
