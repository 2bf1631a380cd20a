// Single kernels of rows, attention and sampling, on one thread, for tests and benchmarks.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch.h"
#include "export.h"

using namespace forerun;

// y [T][size] = x / sqrt(mean(x^2) + eps) * weight.
FORERUN_EXPORT void forerun_rms_norm(const float* x, const float* weight, int num_rows, int size, float eps, float* y) {
    kernels().rms_norm(x, size, weight, size, eps, 0, num_rows, y, size);
}

// y [T][size] = silu(gate) * up of gate_up [T][2 * size].
FORERUN_EXPORT void forerun_silu_mul(const float* gate_up, int num_rows, int size, float* y) {
    kernels().silu_mul(gate_up, 2 * size, gate_up + size, 2 * size, size, 0, num_rows, y);
}

// All heads of T rows; row t goes to slot first_slot + t. See Kernels::rope_append.
FORERUN_EXPORT void forerun_rope_append(const float* qkv, int num_rows, const Heads* heads, const float* cos_sin,
                                        const int32_t* positions, const float* q_norm, const float* k_norm, float eps,
                                        float* q, const LayerCache* cache, int first_slot) {
    const int num_heads = heads->num_heads + 2 * heads->num_kv_heads;
    for (int row = 0; row < num_rows; row++)
        kernels().rope_append(qkv, row, 0, num_heads, *heads, cos_sin, positions[row], q_norm, k_norm, false, eps,
                              1.0f, q, *cache, first_slot + row);
}

// mixed [T][num_heads * head_dim]: attention in calls of rows_per_call rows, at most ATTENTION_ROWS.
FORERUN_EXPORT void forerun_tree_attention(const float* q, const Heads* heads, const LayerCache* cache,
                                           const Visibility* seen, int rows_per_call, float* mixed) {
    const int64_t row_size = static_cast<int64_t>(heads->num_heads) * (2 + heads->head_dim);
    const int64_t chunk_stride = row_size * rows_per_call;
    const int most_positions =
        seen->ancestry ? seen->prefix_len + seen->num_tree : seen->first_slot + seen->num_rows;
    const int num_chunks = (most_positions + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    static thread_local std::vector<float> partial;
    static thread_local std::vector<char> scratch;
    partial.resize(static_cast<size_t>(chunk_stride * num_chunks));
    scratch.resize(static_cast<size_t>(attend_scratch_bytes(*heads)) + 64);
    char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    for (int begin = 0; begin < seen->num_rows; begin += rows_per_call) {
        const int end = begin + rows_per_call < seen->num_rows ? begin + rows_per_call : seen->num_rows;
        float* of_row_0 = partial.data() - begin * row_size;
        for (int chunk = 0; chunk < num_chunks; chunk++)
            for (int kv_head = 0; kv_head < heads->num_kv_heads; kv_head++)
                kernels().attend(q, *heads, *cache, kv_head, begin, end, chunk, *seen,
                                 of_row_0 + chunk * chunk_stride, aligned);
        kernels().join(of_row_0, chunk_stride, num_chunks, *heads, begin, end, 0, heads->num_heads, nullptr,
                       mixed);
    }
}

// See Kernels::sample; scratch has room for end - begin floats.
FORERUN_EXPORT void forerun_sample(const float* scores, int begin, int end, float temperature, const RowNoise* noise,
                                   TopTwo* top_two, float* scratch) {
    *top_two = kernels().sample(scores, begin, end, temperature, *noise, scratch);
}

// See Kernels::topk; scratch has room for `size` floats.
FORERUN_EXPORT float forerun_topk(const float* scores, int size, float temperature, const RowNoise* noise,
                                  const int32_t* ids, int count, int32_t* tokens, float* totals, float* scratch) {
    return kernels().topk(scores, size, temperature, *noise, ids, count, tokens, totals, scratch);
}
