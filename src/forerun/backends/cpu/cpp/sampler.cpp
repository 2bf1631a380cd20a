// Sampling of many rows of scores at the end of a pass, divided among the pool's threads.
#include <cstddef>
#include <vector>

#include "dispatch.h"
#include "export.h"
#include "pool.h"

namespace forerun {
namespace {

constexpr int LEAST_SLICE = 1 << 14;  // smallest number of tokens for which another thread pays

struct SampleRows {
    const float* scores;
    int64_t stride;
    int num_rows, vocab_size, num_slices;
    float temperature;
    const RowNoise* noise;
    TopTwo* top_twos;  // [num_rows][num_slices]
    float* scratch;   // [num_threads][vocab_size]
};

void sample_slices(void* context, Member& self) {
    const SampleRows& request = *static_cast<const SampleRows*>(context);
    float* scratch = request.scratch + static_cast<int64_t>(self.thread()) * request.vocab_size;
    (void)self.share(request.num_rows * request.num_slices, 1, [&](Slice items) {
        for (int item = items.begin; item < items.end; item++) {
            const int row = item / request.num_slices;
            const Slice tokens = slice_of(request.vocab_size, item % request.num_slices, request.num_slices, PANEL);
            request.top_twos[item] = kernels().sample(request.scores + row * request.stride, tokens.begin, tokens.end,
                                                      request.temperature, request.noise[row], scratch);
        }
    });
}

TopTwo better(const TopTwo& left, const TopTwo& right) {  // left has the lower token ids
    if (right.best != right.best || left.best != left.best) return left.best != left.best ? left : right;
    const TopTwo& winner = right.best > left.best ? right : left;
    const TopTwo& other = right.best > left.best ? left : right;
    return {winner.token, winner.best, winner.second > other.best ? winner.second : other.best};
}

struct TopKRows {
    const float* scores;
    int64_t stride;
    int num_rows, vocab_size, count;
    float temperature;
    const RowNoise* noise;
    const int32_t* ids;
    int32_t* tokens;
    float *totals, *log_sums, *scratch;
};

void topk_rows(void* context, Member& self) {
    const TopKRows& request = *static_cast<const TopKRows*>(context);
    float* scratch = request.scratch + static_cast<int64_t>(self.thread()) * request.vocab_size;
    (void)self.share(request.num_rows, 1, [&](Slice rows) {
        for (int row = rows.begin; row < rows.end; row++)
            request.log_sums[row] =
                kernels().topk(request.scores + row * request.stride, request.vocab_size, request.temperature,
                               request.noise[row], request.ids, request.count, request.tokens + row * request.count,
                               request.totals + row * request.count, scratch);
    });
}

int threads_worth(int num_rows, int vocab_size, int num_threads) {
    const int64_t worth = static_cast<int64_t>(num_rows) * vocab_size / LEAST_SLICE;
    return worth < 1 ? 1 : worth < num_threads ? static_cast<int>(worth) : num_threads;
}

float* scratch_of(int num_threads, int vocab_size) {
    static thread_local std::vector<float> scratch;
    const auto size = static_cast<size_t>(num_threads) * static_cast<size_t>(vocab_size);
    if (scratch.size() < size) scratch.resize(size);
    return scratch.data();
}

}  // namespace
}  // namespace forerun

// The token after each of num_rows rows of scores, `stride` floats apart; see Kernels::sample.
FORERUN_EXPORT void forerun_sample_rows(const float* scores, int64_t stride, int num_rows, int vocab_size,
                                        float temperature, const forerun::RowNoise* noise, forerun::TopTwo* top_twos,
                                        int num_threads) {
    using namespace forerun;
    num_threads = threads_worth(num_rows, vocab_size, num_threads);
    const int num_slices = num_rows >= num_threads ? 1 : (num_threads + num_rows - 1) / num_rows;
    static thread_local std::vector<TopTwo> slices;
    if (slices.size() < static_cast<size_t>(num_rows * num_slices))
        slices.resize(static_cast<size_t>(num_rows * num_slices));
    SampleRows request{scores, stride, num_rows, vocab_size, num_slices, temperature,
                       noise, slices.data(), scratch_of(num_threads, vocab_size)};
    run_job(sample_slices, &request, num_threads);
    for (int row = 0; row < num_rows; row++) {
        const TopTwo* of_row = slices.data() + static_cast<int64_t>(row) * num_slices;
        top_twos[row] = of_row[0];
        for (int slice = 1; slice < num_slices; slice++) top_twos[row] = better(top_twos[row], of_row[slice]);
    }
}

// The `count` best tokens of each row, their totals, and the logarithm of the row's sum; see Kernels::topk.
FORERUN_EXPORT void forerun_topk_rows(const float* scores, int64_t stride, int num_rows, int vocab_size,
                                      float temperature, const forerun::RowNoise* noise, const int32_t* ids,
                                      int count, int32_t* tokens, float* totals, float* log_sums, int num_threads) {
    using namespace forerun;
    num_threads = threads_worth(num_rows, vocab_size, num_threads);
    TopKRows request{scores, stride, num_rows, vocab_size, count, temperature,
                     noise, ids, tokens, totals, log_sums, scratch_of(num_threads, vocab_size)};
    run_job(topk_rows, &request, num_threads);
}
