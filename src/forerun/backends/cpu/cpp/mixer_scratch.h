// Layout of the scratch memory of one call of delta_net: offsets in bytes, all multiples of 64.
#pragma once
#include "attention_scratch.h"

namespace forerun {
namespace {

constexpr int NET_ROWS = 8;  // rows of a pass that read a state together

struct MixerScratch {  // see NetCall
    int64_t queries, products, decays, weights, sums, betas, totals, transposed, slots, num_bytes;
};

// Values that a row leaves in its slot, besides its channels.
inline int64_t row_size(const Mixer& net) {
    return static_cast<int64_t>(net.num_key_heads) * net.key_dim +
           static_cast<int64_t>(net.num_value_heads) * (net.value_dim + 1);
}

// `reach`: slots from the place of any row to the end of the pass, and two vectors more.
inline MixerScratch mixer_scratch(const Mixer& net, int64_t reach) {
    int64_t end = 0;
    const auto floats = [&](int64_t count) {
        const int64_t begin = end;
        end += (count * 4 + 63) / 64 * 64;
        return begin;
    };
    const int64_t group = net.num_value_heads / net.num_key_heads;
    MixerScratch s{};
    s.queries = floats(2 * NET_ROWS * net.key_dim);
    s.products = floats(2 * NET_ROWS * reach);
    s.decays = floats(NET_ROWS * group * reach);
    s.weights = floats(2 * NET_ROWS * SCORE_STRIDE);
    s.sums = floats(2 * NET_ROWS * group * net.value_dim);
    s.betas = floats(NET_ROWS * group);
    s.totals = floats(NET_ROWS * group);
    s.transposed = floats(static_cast<int64_t>(net.key_dim) * TILE_SLOTS);
    s.slots = floats(ATTENTION_CHUNK);
    s.num_bytes = end;
    return s;
}

}  // namespace
}  // namespace forerun
