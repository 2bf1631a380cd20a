// What the members of a job share: the step at hand, how far each one's part of it is, and who is at work.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool.h"

namespace forerun {

constexpr int MOST_THREADS = 255;
constexpr int PAUSES_BETWEEN_LOOKS = 64;  // at the clock: some microseconds

// Gives the core away if this thread has had it for long. To be called where nobody waits for this thread.
void let_others_run();
// Before that: what this thread did until now has had no looks.
void look_anew();

// Outlives its jobs, whose steps are numbered on and on: a thread that comes late finds its step's number passed.
class Team {
   public:
    uint64_t step() const { return step_.load(std::memory_order_acquire); }

    void open(uint64_t job) { open_job_.store(job, std::memory_order_seq_cst); }
    // Returns when no other thread is in the job, which none can enter any more.
    void close();
    // While a thread is in a job, the job's context stays. False: it is over.
    bool enter(uint64_t job);
    void leave() { num_inside_.fetch_sub(1, std::memory_order_release); }

    // Takes up to `tile` things of the part of `thread`; an empty slice if none is left.
    Slice take(uint64_t step, int count, int thread, int num_threads, int tile, int unit);
    // Notes that so many things are done. Nobody else's step can be another one until then.
    void finish(uint64_t step, int num_done, int count);

   private:
    struct alignas(64) Part {
        std::atomic<uint64_t> taken{0};  // number of the step, then the things taken; another step's number: none yet
    };
    Part parts_[MOST_THREADS];
    alignas(64) std::atomic<uint64_t> step_{1};
    alignas(64) std::atomic<int> num_done_{0};
    alignas(64) std::atomic<uint64_t> open_job_{0};
    alignas(64) std::atomic<int> num_inside_{0};
};

}  // namespace forerun
