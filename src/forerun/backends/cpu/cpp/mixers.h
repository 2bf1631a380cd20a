// Layers without attention: causal convolutions along a row's own path, and gated delta nets (core/mixers.py).
//
// A delta net computes one key head with its value heads. A row reads the state at its place and then the rows of its
// own path since, and all its sums run in this order: over the state's keys, then over the rows in the order of the
// text. Rows of a pass that read the same state and the same text share what is read, which changes the order of no sum.
// So a row's bits depend on its path alone. The products are those of attention (attention_tiles.h): of queries and keys
// with the rows' keys, and of these products with the rows' updates.
#pragma once
#include "attention.h"
#include "mixer_scratch.h"
#include "rows.h"

namespace forerun {
namespace {

constexpr float KEY_EPS = 1e-6f;  // of the norms of queries and keys

inline simd::F some(const float* p, int n) { return n == PANEL ? simd::load(p) : simd::load_n(p, n); }
inline void put_some(float* p, simd::F a, int n) { n == PANEL ? simd::store(p, a) : simd::store_n(p, a, n); }

// Calls work(i, n) for every vector of `size` floats: its first, and how many it has.
template <typename Work> FORERUN_INLINE void each_vector(int size, Work work) {
    int i = 0;
    for (; i + PANEL <= size; i += PANEL) work(i, PANEL);
    if (i < size) work(i, size - i);
}

// Source: LFM2, and the convolution of Qwen3-Next. `in` has the inputs of all rows: of a delta net they are its first
// columns; of a short convolution B, C and x, where B x is the input and the output is multiplied by C.
inline void convolve(const Mixer& mixer, const float* in, int64_t in_stride, const RowPath* paths, int num_rows,
                     int first_slot, int begin, int end, float* out) {
    const int size = mixer.num_channels, last_tap = mixer.kernel_size - 1;
    const bool is_gated = mixer.num_value_heads == 0;
    const auto slot_at = [&](int slot) { return mixer.inputs + static_cast<int64_t>(slot % mixer.num_slots) * size; };
    for (int row = 0; row < num_rows; row++) {
        const float* own = in + row * in_stride + begin;
        float* to = slot_at(first_slot + row) + begin;
        each_vector(end - begin, [&](int i, int n) {
            const simd::F x = some(own + i, n);
            put_some(to + i, is_gated ? simd::mul(x, some(own + 2 * size + i, n)) : x, n);
        });
        const RowPath& path = paths[row];  // of rows before this one, which have written theirs
        const float* of_tap[MOST_TAPS];
        for (int back = 0; back <= last_tap; back++) {  // from the row itself towards the begin of the text
            const int own = path.num_own - back, text = path.text_end - (back - path.num_own);
            const int slot = back == 0 ? first_slot + row : own >= 0 ? path.own[own] : text;
            of_tap[last_tap - back] = slot < 0 ? nullptr : slot_at(slot) + begin;
        }
        const float* gate = in + row * in_stride + size + begin;
        float* written = out + static_cast<int64_t>(row) * size + begin;
        each_vector(end - begin, [&](int i, int n) {
            simd::F sum = mixer.bias ? some(mixer.bias + begin + i, n) : simd::zero();
            for (int tap = 0; tap <= last_tap; tap++)
                if (of_tap[tap])
                    sum = simd::fma(some(of_tap[tap] + i, n), some(mixer.taps + tap * size + begin + i, n), sum);
            put_some(written + i, is_gated ? simd::mul(some(gate + i, n), sum) : simd::silu(sum), n);
        });
    }
}

inline float softplus(float x) {
    if (x > 20.0f) return x;  // as torch
    float lanes[PANEL];
    const simd::F power = simd::exp(simd::set1(x));
    simd::store(lanes, power);
    const bool is_small = lanes[0] < 0.4f;  // log_split is exact there
    simd::store(lanes, is_small ? simd::log_split(simd::zero(), power) : simd::log(simd::add(power, simd::set1(1.0f))));
    return lanes[0];
}

struct NetCall {
    const Mixer& net;
    const float *convolved, *in;  // [T][num_channels]; [T][in_stride]
    int64_t in_stride;
    const RowPath* paths;
    int first_slot, key_head;
    int group;  // value heads of the key head
    int64_t row_size, reach;
    float eps;
    float* mixed;  // [T][value heads][V]
    // Of a block of rows; queries are numbered 2 i for the key and 2 i + 1 for the query of row i.
    float* queries;   // [2 NET_ROWS][K]
    float* products;  // [2 NET_ROWS][reach], with the key of each slot since the place
    float* decays;    // [NET_ROWS][group][reach], from each row of the path to this one
    float* weights;   // [2 NET_ROWS][SCORE_STRIDE]
    float* sums;      // [group][2 NET_ROWS][V]
    float* betas;     // [NET_ROWS][group]
    float* totals;    // the same
    int32_t *transposed, *slots;

    int head(int i) const { return net.has_tiled_keys ? key_head + i * net.num_key_heads : key_head * group + i; }
    int ring(int slot) const { return slot % net.num_slots; }
    float* row(int slot) const { return net.rows + ring(slot) * row_size; }
    int64_t update_at(int i) const {
        return static_cast<int64_t>(net.num_key_heads) * net.key_dim + static_cast<int64_t>(head(i)) * net.value_dim;
    }
    int64_t decay_at(int i) const { return row_size - net.num_value_heads + head(i); }
    float* state(int place, int i) const {
        const int64_t number = static_cast<int64_t>(place / net.stride % net.num_states) * net.num_value_heads + head(i);
        return net.states + number * net.key_dim * net.value_dim;
    }
    // Slots from `slot` on that lie behind each other, at most a tile.
    int run(int slot, int end) const { return least(least(end - slot, TILE_SLOTS), net.num_slots - ring(slot)); }
};

// mixed[q] += sum over i of weights[q][i] values[i].
inline void mix_values(const NetCall& call, Values<float> values, const float* weights, int num_queries, float* mixed) {
    const int size = call.net.value_dim;
    for (int d = 0, next = 0; d < size; d = next) {
        Values<float> once = values;
        for (int query = 0; query < num_queries; query += simd::BLOCK_QUERIES) {
            const int count = least(simd::BLOCK_QUERIES, num_queries - query);
            float* to[simd::BLOCK_QUERIES];
            for (int i = 0; i < count; i++) to[i] = mixed + static_cast<int64_t>(query + i) * size;
            next = mix_some(once, count, weights + query * SCORE_STRIDE, to, d, size);
            once.ahead = 0;  // for the next queries the values are in the cache
        }
    }
}

// Transposes the keys of n slots behind each other, as transpose_tile does for attention.
inline void transpose_keys(const NetCall& call, int slot, int n) {
    const int size = call.net.key_dim;
    const int64_t row_bytes = call.row_size * 4;
    for (int s = 0; s < n; s += PANEL) {
        const char* from = reinterpret_cast<const char*>(call.row(slot) + s * call.row_size + call.key_head * size);
        for (int w = 0; w < size; w += PANEL) {
            for (int row = 0; row < PANEL; row++) simd::prefetch(from + (TILE_SLOTS + row) * row_bytes + 4 * w);
            simd::transpose(from + 4 * w, row_bytes, least(PANEL, n - s), least(PANEL, size - w),
                            call.transposed + w * TILE_SLOTS + s, TILE_SLOTS);
        }
    }
}

// Replaces n logarithms by their powers.
inline void exp_all(float* x, int n) {
    each_vector(n, [&](int i, int lanes) { put_some(x + i, simd::exp(some(x + i, lanes)), lanes); });
}

// The state a stride after a place, from the state there and the rows between.
inline void advance(const NetCall& call, int place) {
    const Mixer& net = call.net;
    const int end = place + net.stride;
    for (int i = 0; i < call.group; i++) {
        float* after = call.decays + i * call.reach;  // from each row to the end; at last, from the place
        float total = 0.0f;
        for (int slot = end - 1; slot >= place; slot--) {
            after[slot - place] = total;
            total += call.row(slot)[call.decay_at(i)];
        }
        after[net.stride] = total;
        exp_all(after, net.stride + 1);
        const float *from = call.state(place, i), decay = after[net.stride];
        float* to = call.state(end, i);
        const int size = net.key_dim * net.value_dim;
        each_vector(size, [&](int at, int n) {
            put_some(to + at, place ? simd::mul(some(from + at, n), simd::set1(decay)) : simd::zero(), n);
        });
    }
    for (int slot = place; slot < end;) {
        const int n = call.run(slot, end);
        transpose_keys(call, slot, n);
        const float* keys = reinterpret_cast<const float*>(call.transposed);
        for (int i = 0; i < call.group; i++) {
            const float* after = call.decays + i * call.reach + (slot - place);
            const Values<float> updates{net.rows + call.update_at(i), call.row_size, nullptr, call.ring(slot), n, 0};
            for (int dim = 0; dim < net.key_dim; dim += simd::BLOCK_QUERIES) {
                const int count = least(simd::BLOCK_QUERIES, net.key_dim - dim);
                for (int q = 0; q < count; q++)
                    each_vector(n, [&](int t, int lanes) {
                        const simd::F key = some(keys + (dim + q) * TILE_SLOTS + t, lanes);
                        put_some(call.weights + q * SCORE_STRIDE + t, simd::mul(key, some(after + t, lanes)), lanes);
                    });
                mix_values(call, updates, call.weights, count, call.state(end, i) + int64_t{dim} * net.value_dim);
            }
        }
        slot += n;
    }
}

// x / sqrt(x . x + eps) * factor.
inline void normalise(const float* x, int size, float factor, float* y) {
    simd::F squares = simd::zero();
    each_vector(size, [&](int i, int n) { squares = simd::fma(some(x + i, n), some(x + i, n), squares); });
    const float scale = 1.0f / __builtin_sqrtf(simd::sum(squares) + KEY_EPS);
    each_vector(size, [&](int i, int n) {
        put_some(y + i, simd::mul(simd::mul(some(x + i, n), simd::set1(scale)), simd::set1(factor)), n);
    });
}

// Writes a row's key and decays to its slot. Returns the product of its key and its query.
inline float prepare_row(const NetCall& call, int row, int number) {
    const Mixer& net = call.net;
    const int size = net.key_dim, first_query = 2 * number;
    const float* channels = call.convolved + static_cast<int64_t>(row) * net.num_channels + call.key_head * size;
    float *key = call.queries + first_query * size, *query = key + size;
    normalise(channels, size, 1.0f / __builtin_sqrtf(static_cast<float>(size)), query);
    normalise(channels + net.num_key_heads * size, size, 1.0f, key);
    float* slot = call.row(call.first_slot + row);
    simd::F products = simd::zero();
    each_vector(size, [&](int i, int n) {
        const simd::F k = some(key + i, n), q = some(query + i, n);
        put_some(slot + call.key_head * size + i, k, n);
        products = simd::fma(k, q, products);
    });
    const float* gates = call.in + row * call.in_stride + net.num_channels + net.num_value_heads * net.value_dim;
    for (int i = 0; i < call.group; i++) {
        const int head = call.head(i);
        call.betas[number * call.group + i] = 1.0f / (1.0f + exp_one(-gates[head]));
        slot[call.decay_at(i)] = net.rates[head] * softplus(gates[net.num_value_heads + head] + net.decay_bias[head]);
    }
    return simd::sum(products);
}

// The products of the block's queries with the keys of all slots from the place to the block's end.
inline void multiply_keys(const NetCall& call, int place, int end, int num_queries) {
    const int size = call.net.key_dim;
    for (int slot = place; slot < end;) {
        const int n = call.run(slot, end);
        transpose_keys(call, slot, n);
        for (int query = 0; query < num_queries; query += simd::BLOCK_QUERIES)
            score_tile<float>(least(simd::BLOCK_QUERIES, num_queries - query), call.queries + query * size, size,
                              call.transposed, (n + PANEL - 1) / PANEL, 1.0f,
                              call.products + query * call.reach + (slot - place), static_cast<int>(call.reach));
        slot += n;
    }
}

// The slot of a row's path, counted from its place.
inline int slot_of(const RowPath& path, int i) {
    const int num_text = path.text_end - path.place;
    return i < num_text ? path.place + i : path.own[i - num_text];
}
inline int length_of(const RowPath& path) { return path.text_end - path.place + path.num_own; }

// Decays from each of the first `common` rows, which all rows of the block read, and from those that each reads besides,
// to the row; at last that from the place.
inline void sum_decays(const NetCall& call, int begin, int end, int common) {
    float* totals = call.totals;
    const int group = call.group, num_sums = (end - begin) * group, place = call.paths[begin].place;
    for (int row = begin; row < end; row++)
        for (int i = 0; i < group; i++) {
            const int number = (row - begin) * group + i;
            const RowPath& path = call.paths[row];
            float total = call.row(call.first_slot + row)[call.decay_at(i)];
            for (int at = length_of(path) - 1; at >= common; at--) {
                call.decays[number * call.reach + at] = total;
                total += call.row(slot_of(path, at))[call.decay_at(i)];
            }
            totals[number] = total;
        }
    for (int at = common - 1, ring = call.ring(place + common - 1); at >= 0; at--, ring--) {
        if (ring < 0) ring += call.net.num_slots;
        const float* of_row = call.net.rows + ring * call.row_size;
        for (int number = 0; number < num_sums; number++) {
            call.decays[number * call.reach + at] = totals[number];
            totals[number] += of_row[call.decay_at(number % group)];
        }
    }
    for (int number = 0; number < num_sums; number++) {
        const int length = length_of(call.paths[begin + number / group]);
        call.decays[number * call.reach + length] = totals[number];
        exp_all(call.decays + number * call.reach, length + 1);
    }
}

// sums[q] = S^T q times the decay from the place, and then the common rows are added.
inline void add_common(const NetCall& call, int begin, int end, int common, int i) {
    const Mixer& net = call.net;
    const int place = call.paths[begin].place, num_queries = 2 * (end - begin), size = net.value_dim;
    float* sums = call.sums + static_cast<int64_t>(i) * 2 * NET_ROWS * size;
    __builtin_memset(sums, 0, sizeof(float) * static_cast<unsigned>(num_queries * size));
    if (place) {
        for (int dim = 0; dim < net.key_dim; dim += ATTENTION_CHUNK) {
            const int n = least(ATTENTION_CHUNK, net.key_dim - dim);
            for (int q = 0; q < num_queries; q++)
                __builtin_memcpy(call.weights + q * SCORE_STRIDE, call.queries + q * net.key_dim + dim,
                                 sizeof(float) * static_cast<unsigned>(n));
            const Values<float> state{call.state(place, i), size, nullptr, dim, n, VALUES_AHEAD * size};
            mix_values(call, state, call.weights, num_queries, sums);
        }
        for (int q = 0; q < num_queries; q++) {
            const int row = begin + q / 2;
            const float decay = call.decays[((row - begin) * call.group + i) * call.reach + length_of(call.paths[row])];
            each_vector(size, [&](int at, int n) {
                put_some(sums + q * size + at, simd::mul(some(sums + q * size + at, n), simd::set1(decay)), n);
            });
        }
    }
    for (int slot = place; slot < place + common;) {
        const int n = call.run(slot, place + common);
        for (int q = 0; q < num_queries; q++) {
            const float* products = call.products + q * call.reach + (slot - place);
            const float* decays = call.decays + (q / 2 * call.group + i) * call.reach + (slot - place);
            each_vector(n, [&](int t, int lanes) {
                put_some(call.weights + q * SCORE_STRIDE + t, simd::mul(some(products + t, lanes), some(decays + t, lanes)),
                         lanes);
            });
        }
        const Values<float> updates{net.rows + call.update_at(i), call.row_size, nullptr, call.ring(slot), n,
                                    VALUES_AHEAD * call.row_size};
        mix_values(call, updates, call.weights, num_queries, sums);
        slot += n;
    }
}

// Adds the rows of the row's path after the common ones.
inline void add_own(const NetCall& call, int row, int number, int common, int i) {
    const RowPath& path = call.paths[row];
    float* sums = call.sums + (static_cast<int64_t>(i) * NET_ROWS + number) * 2 * call.net.value_dim;
    const float* decays = call.decays + (number * call.group + i) * call.reach;
    for (int first = common, length = length_of(path); first < length; first += ATTENTION_CHUNK) {
        const int n = least(ATTENTION_CHUNK, length - first);
        for (int t = 0; t < n; t++) {
            const int slot = slot_of(path, first + t);
            call.slots[t] = call.ring(slot);
            for (int q = 0; q < 2; q++)
                call.weights[q * SCORE_STRIDE + t] =
                    call.products[(2 * number + q) * call.reach + (slot - path.place)] * decays[first + t];
        }
        mix_values(call, {call.net.rows + call.update_at(i), call.row_size, call.slots, 0, n, 0}, call.weights, 2, sums);
    }
}

// Writes a row's update to its slot, and its output, normalised and gated.
inline void finish_row(const NetCall& call, float key_query, int row, int number, int i) {
    const Mixer& net = call.net;
    const int size = net.value_dim, head = call.head(i);
    float* sums = call.sums + (static_cast<int64_t>(i) * NET_ROWS + number) * 2 * size;
    float *outputs = sums + size, *update = call.row(call.first_slot + row) + call.update_at(i);
    const float* values = call.convolved + static_cast<int64_t>(row) * net.num_channels +
                          2 * net.num_key_heads * net.key_dim + static_cast<int64_t>(head) * size;
    const float beta = call.betas[number * call.group + i];
    each_vector(size, [&](int at, int n) {
        const simd::F change = simd::mul(simd::set1(beta), simd::sub(some(values + at, n), some(sums + at, n)));
        put_some(update + at, change, n);
        put_some(outputs + at, simd::fma(simd::set1(key_query), change, some(outputs + at, n)), n);
    });
    const simd::F scale = simd::set1(norm_scale(outputs, size, call.eps));
    const float* gate = call.in + row * call.in_stride + net.num_channels + static_cast<int64_t>(head) * size;
    float* mixed = call.mixed + (static_cast<int64_t>(row) * net.num_value_heads + head) * size;
    each_vector(size, [&](int at, int n) {
        const simd::F normed = simd::mul(simd::mul(some(outputs + at, n), scale), some(net.scale + at, n));
        put_some(mixed + at, gated(some(gate + at, n), normed), n);
    });
}

// Rows [begin, end), which read the same state.
inline void net_block(const NetCall& call, int begin, int end) {
    float key_queries[NET_ROWS];
    for (int row = begin; row < end; row++) key_queries[row - begin] = prepare_row(call, row, row - begin);
    const int place = call.paths[begin].place, common = call.paths[begin].text_end - place;
    multiply_keys(call, place, call.first_slot + end - 1, 2 * (end - begin));
    sum_decays(call, begin, end, common);
    for (int i = 0; i < call.group; i++) {
        add_common(call, begin, end, common, i);
        for (int row = begin; row < end; row++) {
            add_own(call, row, row - begin, common, i);
            finish_row(call, key_queries[row - begin], row, row - begin, i);
        }
    }
}

inline void delta_net(const Mixer& net, const float* convolved, const float* in, int64_t in_stride,
                      const RowPath* paths, int num_rows, int first_slot, int key_head, int64_t reach, float eps,
                      float* mixed, void* scratch) {
    const int group = net.num_value_heads / net.num_key_heads;
    const MixerScratch places = mixer_scratch(net, reach);
    char* bytes = static_cast<char*>(scratch);
    const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(bytes + at); };
    const auto words = [&](int64_t at) { return reinterpret_cast<int32_t*>(bytes + at); };
    const NetCall call{net, convolved, in, in_stride, paths, first_slot, key_head, group, row_size(net), reach, eps,
                       mixed, floats(places.queries), floats(places.products), floats(places.decays),
                       floats(places.weights), floats(places.sums), floats(places.betas), floats(places.totals),
                       words(places.transposed), words(places.slots)};
    int reached = static_cast<int>(net.held[1]);
    for (int begin = 0, end = 0; begin < num_rows; begin = end) {
        const int place = paths[begin].place;
        for (end = begin + 1; end < num_rows && end - begin < NET_ROWS && paths[end].place == place; end++) {}
        for (; reached < place; reached += net.stride) advance(call, reached);
        net_block(call, begin, end);
    }
}

}  // namespace
}  // namespace forerun
