// A thread pool. Idle threads spin while a job is likely to arrive soon, and then sleep.
//
// A job is a sequence of steps. A step has a number of items, which the threads divide among themselves, and ends when
// all items are done. Each thread begins with its own part; when that is done, it takes items from the parts of
// other threads. So a thread that has lost its core delays the others only if that happened within a tile. Therefore
// threads that have run for long yield their core between two tiles, before the scheduler preempts them.
#pragma once
#include <atomic>
#include <cstdint>

namespace forerun {

struct Slice {
    int begin, end;
};

// One thread's part of `count` items, in multiples of `unit`.
inline Slice slice_of(int count, int thread, int num_threads, int unit = 1) {
    const int64_t units = (count + unit - 1) / unit;
    const int begin = static_cast<int>(units * thread / num_threads) * unit;
    const int end = static_cast<int>(units * (thread + 1) / num_threads) * unit;
    return {begin < count ? begin : count, end < count ? end : count};
}

class Team;

// One thread of a job.
class Member {
   public:
    Member(Team* team, int thread, int num_threads, uint64_t job, uint64_t first_step, const int32_t* stop)
        : team_(team), thread_(thread), num_threads_(num_threads), job_(job), stop_(stop), step_(first_step) {}
    int thread() const { return thread_; }
    int num_threads() const { return num_threads_; }

    // Runs the job's next step: calls work(slice) until the members have done all `count` items, then returns. Every
    // member must call every step with the same numbers; data written in one step may be read only in a later step. A
    // slice is at most `tile` items, a multiple of `unit`; a single thread gets all items at once if the job cannot be
    // given up. Returns false if the job is over, in which case its context may be gone.
    template <class Work>
    [[nodiscard]] bool share(int count, int tile, Work work, int unit = 1) {
        const auto call = [](void* context, Slice slice) { (*static_cast<Work*>(context))(slice); };
        return share_by(count, tile, unit, call, &work);
    }

    void leave();

   private:
    using Tile = void (*)(void* context, Slice slice);
    bool share_by(int count, int tile, int unit, Tile work, void* context);
    void do_part_of(int thread, int count, int tile, int unit, Tile work, void* context);
    bool wait_outside();
    bool is_given_up() const { return stop_ && *static_cast<const volatile int32_t*>(stop_); }

    Team* team_;  // null: alone
    const int thread_, num_threads_;
    const uint64_t job_;
    const int32_t* const stop_;
    uint64_t step_;
    bool is_over_ = false;
};

using Job = void (*)(void* context, Member& member);

// Runs a job on up to `num_threads` threads, the calling thread as number 0, and returns when all its steps are done.
// While another thread's job runs, a job runs on its caller alone; results do not depend on the number of threads.
//
// Any thread may give a job up by writing 1 to `stop`: then no further tile is computed, and the job ends at once with
// results that nobody may read.
void run_job(Job job, void* context, int num_threads, const int32_t* stop = nullptr);

}  // namespace forerun
