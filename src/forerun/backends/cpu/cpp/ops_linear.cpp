// Packing of weights; a single linear for tests and benchmarks; and the read bandwidth to compare it with.
#include <cstdlib>

#include "dispatch.h"
#include "export.h"
#include "memory.h"
#include "pack.h"
#include "pool.h"
#include "program.h"

using namespace forerun;

namespace {

Rows reserve_rows(const Linear& linear, int num_rows) {
    static thread_local Scratch scratch;
    char* memory = scratch.reserve(rows_bytes(linear, num_rows));
    if (!memory) std::abort();
    return rows_in(memory, linear, num_rows);
}

struct LinearJob {
    const Linear& linear;
    const float* x;
    int num_rows;
    Rows rows;
    Output out;
};

void run_linear(void* context, Member& self) {
    const LinearJob& job = *static_cast<const LinearJob*>(context);
    const auto prepare = [&](Slice rows) {
        kernels().prepare(job.linear, job.x, job.linear.num_in, rows.begin, rows.end, job.rows);
    };
    const auto multiply = [&](Slice panels) {
        kernels().linear(job.linear, job.rows, job.num_rows, panels.begin, panels.end, job.out);
    };
    if (self.share(job.num_rows, job.num_rows, prepare))
        (void)self.share(num_panels(job.linear), num_panels(job.linear) + 1, multiply, 2);
}

struct ReadJob {
    const uint64_t* words;
    int64_t num_lines;
    uint64_t* sums;
};

constexpr int64_t LINES_OF_A_PIECE = 1 << 10;
constexpr int PIECES_OF_A_TILE = 16;  // 1 MB

void run_read(void* context, Member& self) {
    const ReadJob& job = *static_cast<const ReadJob*>(context);
    const int num_pieces = static_cast<int>((job.num_lines + LINES_OF_A_PIECE - 1) / LINES_OF_A_PIECE);
    (void)self.share(num_pieces, PIECES_OF_A_TILE, [&](Slice pieces) {
        const int64_t begin = pieces.begin * LINES_OF_A_PIECE, wanted = pieces.end * LINES_OF_A_PIECE;
        const int64_t end = wanted < job.num_lines ? wanted : job.num_lines;
        uint64_t sums[8] = {};
        for (const uint64_t* line = job.words + begin * 8; line < job.words + end * 8; line += 8)
            for (int i = 0; i < 8; i++) sums[i] ^= line[i];
        for (const uint64_t sum : sums) job.sums[self.thread() * 8] ^= sum;
    });
}

}  // namespace

// Packs a weight, see pack.h.
FORERUN_EXPORT int64_t forerun_pack(Linear* linear, const Source* source, int num_threads) {
    return pack(*linear, *source, num_threads);
}

// Points a weight at memory where it is packed already, see pack.h.
FORERUN_EXPORT int64_t forerun_place(Linear* linear, void* memory, int has_bias) {
    return place(*linear, static_cast<char*>(memory), has_bias != 0);
}

FORERUN_EXPORT void forerun_free(void* memory) { free_aligned(memory); }

// y = x W^T + bias with an epilogue; x is [T][num_in], y and residual are [T] rows of all outputs.
FORERUN_EXPORT void forerun_linear(const Linear* linear, const float* x, int num_rows, float* y, const float* residual,
                                   int epilogue, int num_threads) {
    const int64_t width = is_gate(static_cast<Epilogue>(epilogue)) ? linear->paired : linear->num_out;
    const Rows rows = reserve_rows(*linear, num_rows);
    LinearJob job{*linear, x, num_rows, rows, {y, residual, width, width, static_cast<Epilogue>(epilogue)}};
    run_job(run_linear, &job, num_threads);
}

// The products of a slice of panels, on one thread.
FORERUN_EXPORT void forerun_linear_slice(const Linear* linear, const float* x, int num_rows, int panel_begin,
                                         int panel_end, float* y) {
    const Rows rows = reserve_rows(*linear, num_rows);
    kernels().prepare(*linear, x, linear->num_in, 0, num_rows, rows);
    const Output out{y, nullptr, linear->num_out, 0, Epilogue::store};
    kernels().linear(*linear, rows, num_rows, panel_begin, panel_end, out);
}

// Rows [T][num_in] of a packed weight of floats or blocks, see pack.h.
FORERUN_EXPORT void forerun_read_rows(const Linear* linear, const int64_t* numbers, int num_rows, float* rows) {
    for (int row = 0; row < num_rows; row++)
        read_row(*linear, numbers[row], rows + static_cast<int64_t>(row) * linear->num_in);
}

// Reads memory to measure the bandwidth that a linear could reach; the result depends on all of it, so no read is
// optimised away. At most 64 threads.
FORERUN_EXPORT uint64_t forerun_read(const void* memory, int64_t num_bytes, int num_threads) {
    uint64_t sums[64 * 8] = {}, all = 0;
    ReadJob job{static_cast<const uint64_t*>(memory), num_bytes / 64, sums};
    run_job(run_read, &job, num_threads);
    for (const uint64_t sum : sums) all ^= sum;
    return all;
}
