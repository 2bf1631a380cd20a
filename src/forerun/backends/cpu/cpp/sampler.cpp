// The end of a pass: many rows of scores to tokens, shared out among the pool's threads.
#include <cstddef>
#include <vector>

#include "dispatch.h"
#include "export.h"
#include "pool.h"

namespace forerun {
namespace {

constexpr int LEAST_SLICE = 1 << 16;  // tokens that are worth another thread

struct Choice {
    const float* scores;
    int64_t stride;
    int num_rows, vocab_size, num_slices;
    float temperature;
    const RowNoise* noise;
    Leader* leaders;  // [num_rows][num_slices]
    float* scratch;   // [num_threads][vocab_size]
};

void choose_slices(void* context, int thread, Team& team) {
    const Choice& choice = *static_cast<const Choice*>(context);
    float* scratch = choice.scratch + static_cast<int64_t>(thread) * choice.vocab_size;
    const Slice items = slice_of(choice.num_rows * choice.num_slices, thread, team.size());
    for (int item = items.begin; item < items.end; item++) {
        const int row = item / choice.num_slices;
        const Slice tokens = slice_of(choice.vocab_size, item % choice.num_slices, choice.num_slices, PANEL);
        choice.leaders[item] = kernels().choose(choice.scores + row * choice.stride, tokens.begin, tokens.end,
                                                choice.temperature, choice.noise[row], scratch);
    }
}

Leader better(const Leader& left, const Leader& right) {  // left's tokens are the lower ones
    if (right.best != right.best || left.best != left.best) return left.best != left.best ? left : right;
    const Leader& winner = right.best > left.best ? right : left;
    const Leader& other = right.best > left.best ? left : right;
    return {winner.token, winner.best, winner.second > other.best ? winner.second : other.best};
}

struct Ranking {
    const float* scores;
    int64_t stride;
    int num_rows, vocab_size, count;
    float temperature;
    const RowNoise* noise;
    int32_t* tokens;
    float *totals, *log_sums, *scratch;
};

void rank_rows(void* context, int thread, Team& team) {
    const Ranking& ranking = *static_cast<const Ranking*>(context);
    float* scratch = ranking.scratch + static_cast<int64_t>(thread) * ranking.vocab_size;
    const Slice rows = slice_of(ranking.num_rows, thread, team.size());
    for (int row = rows.begin; row < rows.end; row++)
        ranking.log_sums[row] =
            kernels().rank(ranking.scores + row * ranking.stride, ranking.vocab_size, ranking.temperature,
                           ranking.noise[row], ranking.count, ranking.tokens + row * ranking.count,
                           ranking.totals + row * ranking.count, scratch);
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

// The token after each of num_rows rows of scores, `stride` floats apart; see Kernels::choose.
FORERUN_EXPORT void forerun_choose_rows(const float* scores, int64_t stride, int num_rows, int vocab_size,
                                        float temperature, const forerun::RowNoise* noise, forerun::Leader* leaders,
                                        int num_threads) {
    using namespace forerun;
    num_threads = threads_worth(num_rows, vocab_size, num_threads);
    const int num_slices = num_rows >= num_threads ? 1 : (num_threads + num_rows - 1) / num_rows;
    static thread_local std::vector<Leader> slices;
    if (slices.size() < static_cast<size_t>(num_rows * num_slices))
        slices.resize(static_cast<size_t>(num_rows * num_slices));
    Choice choice{scores, stride, num_rows, vocab_size, num_slices, temperature,
                  noise,  slices.data(), scratch_of(num_threads, vocab_size)};
    run_job(choose_slices, &choice, num_threads);
    for (int row = 0; row < num_rows; row++) {
        const Leader* of_row = slices.data() + static_cast<int64_t>(row) * num_slices;
        leaders[row] = of_row[0];
        for (int slice = 1; slice < num_slices; slice++) leaders[row] = better(leaders[row], of_row[slice]);
    }
}

// The `count` best tokens of each row, their totals, and the logarithm of the row's sum; see Kernels::rank.
FORERUN_EXPORT void forerun_rank_rows(const float* scores, int64_t stride, int num_rows, int vocab_size,
                                      float temperature, const forerun::RowNoise* noise, int count, int32_t* tokens,
                                      float* totals, float* log_sums, int num_threads) {
    using namespace forerun;
    num_threads = threads_worth(num_rows, vocab_size, num_threads);
    Ranking ranking{scores, stride, num_rows, vocab_size, count,    temperature,
                    noise,  tokens, totals,   log_sums,   scratch_of(num_threads, vocab_size)};
    run_job(rank_rows, &ranking, num_threads);
}
