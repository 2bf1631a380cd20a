// State that the members of a job share: the current step, the progress of each part, and which threads are working.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool.h"

namespace forerun {

constexpr int MOST_THREADS = 255;
constexpr int PAUSES_BETWEEN_LOOKS = 64;  // between two readings of the clock: some microseconds

// Yields the core if this thread has had it for long. Call it only where no other thread waits for this one.
void let_others_run();
// Call this before the first of these calls, since this thread has not read the clock until now.
void look_anew();

// Lives longer than its jobs. Steps are numbered continuously across jobs, so a late thread sees that its step has
// passed.
class Team {
   public:
    uint64_t step() const { return step_.load(std::memory_order_acquire); }

    void open(uint64_t job) { open_job_.store(job, std::memory_order_seq_cst); }
    // Closes the job to further threads and returns when no other thread is in it.
    void close();
    // Enters a job, whose context stays valid until the thread leaves. False: the job is over.
    bool enter(uint64_t job);
    void leave() { num_inside_.fetch_sub(1, std::memory_order_release); }

    // Takes up to `tile` items from the part of `thread`; an empty slice if none is left.
    Slice take(uint64_t step, int count, int thread, int num_threads, int tile, int unit);
    // Reports this many items as done. No other thread can go to the next step before that.
    void finish(uint64_t step, int num_done, int count);

   private:
    struct alignas(64) Part {
        std::atomic<uint64_t> taken{0};  // step number, then items taken; none are taken if it is another step's number
    };
    Part parts_[MOST_THREADS];
    alignas(64) std::atomic<uint64_t> step_{1};
    alignas(64) std::atomic<int> num_done_{0};
    alignas(64) std::atomic<uint64_t> open_job_{0};
    alignas(64) std::atomic<int> num_inside_{0};
};

}  // namespace forerun
