// Random cases of the kernels of rows, attention and sampling, on every instruction set of this machine, with every
// buffer of exactly its size: for a library built with sanitizers (cmake -DFORERUN_SANITIZE=ON), which end the program
// at the first wrong access. Results of all instruction sets must be close to each other's.
//
// g++ -std=c++17 -fsanitize=address,undefined -Isrc/forerun/kernels/native/cpp tests/backends/cpu/check_rows.cpp
//     libforerun_native.so
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels.h"

using namespace forerun;

extern "C" {
int forerun_select_tier(const char* name);
void forerun_rms_norm(const float* x, const float* weight, int num_rows, int size, float eps, float* y);
void forerun_silu_mul(const float* gate_up, int num_rows, int size, float* y);
void forerun_rope_append(const float* qkv, int num_rows, const Heads* heads, const float* turns,
                         const int32_t* positions, const float* q_norm, const float* k_norm, float eps, float* q,
                         const LayerCache* cache, int first_slot);
void forerun_tree_attention(const float* q, const Heads* heads, const LayerCache* cache, const Visibility* seen,
                            int rows_per_call, float* mixed);
void forerun_sample(const float* scores, int begin, int end, float temperature, const RowNoise* noise, TopTwo* top_two,
                    float* scratch);
float forerun_topk(const float* scores, int size, float temperature, const RowNoise* noise, const int32_t* ids,
                   int count, int32_t* tokens, float* totals, float* scratch);
}

namespace {

using Random = std::mt19937;

int below(Random& random, int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
}

template <typename T> std::unique_ptr<T[]> exactly(size_t size) {  // not a byte more, unlike a vector
    return std::make_unique<T[]>(size);
}

std::unique_ptr<float[]> normals(Random& random, size_t size) {
    auto values = exactly<float>(size);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < size; i++) values[i] = normal(random);
    return values;
}

// Slots of a cache: `num_rows` rows of heads with normal values in its format, and NaN behind the live ones.
std::unique_ptr<char[]> slots(Random& random, size_t live, size_t num_rows, int head_dim, CacheFormat format) {
    const size_t stride = static_cast<size_t>(row_size(format, head_dim) * element_bytes(format));
    auto bytes = exactly<char>(num_rows * stride);
    std::normal_distribution<float> normal;
    for (size_t row = 0; row < num_rows; row++) {
        char* to = bytes.get() + row * stride;
        const float scale = row < live ? 0.02f : NAN;
        for (int i = 0; i < head_dim; i++) {
            const float value = row < live ? normal(random) : NAN;
            if (format == CacheFormat::int8)
                to[i] = static_cast<char>(below(random, 255) - 127);
            else if (format == CacheFormat::bf16)
                std::memcpy(to + 2 * i, reinterpret_cast<const char*>(&value) + 2, 2);
            else
                std::memcpy(to + 4 * i, &value, 4);
        }
        if (format == CacheFormat::int8) std::memcpy(to + head_dim, &scale, sizeof scale);
    }
    return bytes;
}

using Results = std::vector<float>;

void keep(Results& results, const float* values, size_t size) { results.insert(results.end(), values, values + size); }

void check_rows(Random& random, Results& results) {
    const int num_rows = 1 + below(random, 5), size = 1 + below(random, 150);
    const size_t all = static_cast<size_t>(num_rows) * static_cast<size_t>(size);
    const auto x = normals(random, 2 * all), weight = normals(random, static_cast<size_t>(size));
    auto y = exactly<float>(all);
    forerun_rms_norm(x.get(), weight.get(), num_rows, size, 1e-5f, y.get());
    keep(results, y.get(), all);
    forerun_silu_mul(x.get(), num_rows, size, y.get());
    keep(results, y.get(), all);
}

void check_attention(Random& random, Results& results) {
    const int head_dims[] = {2, 6, 20, 32, 64, 80, 128};
    const int num_kv_heads = 1 + below(random, 3), group = 1 + below(random, 8), head_dim = head_dims[below(random, 7)];
    const Heads heads{num_kv_heads * group, num_kv_heads, head_dim};
    const int num_rows = 1 + below(random, 20), prefix_len = below(random, 2) ? below(random, 600) : below(random, 20);
    const bool is_tree = below(random, 2), is_normed = below(random, 2);
    const auto format = static_cast<CacheFormat>(below(random, 3));
    const int num_tree = num_rows + (is_tree ? below(random, 80) : 0), num_slots = prefix_len + num_tree;
    const size_t slot_size = static_cast<size_t>(num_kv_heads * head_dim);
    const size_t row_size = slot_size * static_cast<size_t>(group);
    const size_t rows = static_cast<size_t>(num_rows), heads_of_slots = static_cast<size_t>(num_slots * num_kv_heads);
    const size_t live = heads_of_slots - rows * static_cast<size_t>(num_kv_heads);
    auto keys = slots(random, live, heads_of_slots, head_dim, format);
    auto values = slots(random, live, heads_of_slots, head_dim, format);
    const LayerCache cache{keys.get(), values.get(), format, num_kv_heads * forerun::row_size(format, head_dim)};

    const auto qkv = normals(random, rows * (row_size + 2 * slot_size));
    const auto turns = normals(random, static_cast<size_t>(7 * 2 * head_dim));
    const auto norm = normals(random, static_cast<size_t>(head_dim));
    auto positions = exactly<int32_t>(rows);
    for (size_t row = 0; row < rows; row++) positions[row] = below(random, 7);
    auto q = exactly<float>(rows * row_size), mixed = exactly<float>(rows * row_size);
    const float* weights = is_normed ? norm.get() : nullptr;
    forerun_rope_append(qkv.get(), num_rows, &heads, turns.get(), positions.get(), weights, weights, 1e-5f, q.get(),
                        &cache, num_slots - num_rows);

    auto ancestry = exactly<uint8_t>(rows * static_cast<size_t>(num_tree));
    for (size_t i = 0; i < rows * static_cast<size_t>(num_tree); i++) ancestry[i] = below(random, 3) == 0;
    for (size_t row = 0; row < rows; row++) ancestry[(row + 1) * static_cast<size_t>(num_tree) - rows + row] = 1;
    const Visibility seen{num_rows, num_slots - num_rows, prefix_len, is_tree ? num_tree : 0,
                          is_tree ? ancestry.get() : nullptr};
    forerun_tree_attention(q.get(), &heads, &cache, &seen, 1 + below(random, ATTENTION_ROWS), mixed.get());
    keep(results, mixed.get(), rows * row_size);
}

void check_sampling(Random& random, Results& results) {
    const int size = 1 + below(random, below(random, 2) ? 40 : 3000), begin = below(random, size);
    auto scores = normals(random, static_cast<size_t>(size));
    if (below(random, 3) == 0)
        for (int i = 0; i < size; i++)
            if (below(random, 10)) scores[static_cast<size_t>(i)] = -INFINITY;
    if (below(random, 10) == 0) scores[static_cast<size_t>(below(random, size))] = NAN;
    const RowNoise noise{static_cast<int32_t>(random()), static_cast<int32_t>(random()), below(random, 2)};
    const float temperature = below(random, 2) ? 1.0f : 0.8f;
    TopTwo top_two{};
    forerun_sample(scores.get(), begin, size, temperature, &noise, &top_two,
                   exactly<float>(static_cast<size_t>(size - begin)).get());
    results.insert(results.end(), {static_cast<float>(top_two.token), top_two.best, top_two.second});
    const int count = 1 + below(random, size < 16 ? size : 16);
    auto tokens = exactly<int32_t>(static_cast<size_t>(count));
    auto totals = exactly<float>(static_cast<size_t>(count));
    auto ids = exactly<int32_t>(static_cast<size_t>(size));
    for (int i = 0, id = 0; i < size; i++) ids[static_cast<size_t>(i)] = id += 1 + below(random, 3);
    results.push_back(forerun_topk(scores.get(), size, temperature, &noise, below(random, 2) ? ids.get() : nullptr,
                                   count, tokens.get(), totals.get(), exactly<float>(static_cast<size_t>(size)).get()));
    keep(results, totals.get(), static_cast<size_t>(count));
}

Results run(const char* tier, unsigned num_seeds) {
    Results results;
    if (!forerun_select_tier(tier)) return results;
    for (unsigned seed = 0; seed < num_seeds; seed++) {
        Random random(seed);
        check_rows(random, results);
        check_attention(random, results);
        check_sampling(random, results);
    }
    return results;
}

bool are_close(float a, float b) {
    if (a != a || b != b) return a != a && b != b;
    return a == b || std::fabs(a - b) <= 1e-4f + 1e-3f * std::fabs(b);
}

}  // namespace

int main() {
    const unsigned num_seeds = 200;
    const Results expected = run("portable", num_seeds);
    for (const char* tier : {"neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx"}) {
        const Results results = run(tier, num_seeds);
        size_t num_wrong = results.size() && results.size() != expected.size();
        for (size_t i = 0; i < results.size() && i < expected.size(); i++)
            num_wrong += !are_close(results[i], expected[i]);
        std::printf("%s: %zu results, %zu unlike the portable ones\n", tier, results.size(), num_wrong);
        if (num_wrong) return 1;
    }
    return 0;
}
