// A few threads that wait for a job together: spinning while one is likely to come, then asleep.
#pragma once
#include <atomic>
#include <cstdint>

namespace forerun {

// The threads of one job. Every one of them must reach every barrier.
class Team {
   public:
    explicit Team(int size) : size_(size) {}
    int size() const { return size_; }
    void barrier();

   private:
    const int size_;
    alignas(64) std::atomic<int> num_arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

struct Slice {
    int begin, end;
};

// The part of `count` things that belongs to one thread, in pieces of `unit`.
inline Slice slice_of(int count, int thread, int num_threads, int unit = 1) {
    const int64_t units = (count + unit - 1) / unit;
    const int begin = static_cast<int>(units * thread / num_threads) * unit;
    const int end = static_cast<int>(units * (thread + 1) / num_threads) * unit;
    return {begin < count ? begin : count, end < count ? end : count};
}

using Job = void (*)(void* context, int thread, Team& team);

// Runs a job on `num_threads` threads, the calling one as number 0, and returns when all are done. While another
// thread's job runs, a job runs on its caller alone: results do not depend on the number of threads.
void run_job(Job job, void* context, int num_threads);

}  // namespace forerun
