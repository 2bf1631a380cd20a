// A few threads that wait for a job together: spinning while one is likely to come, then asleep.
//
// A job is a sequence of steps, each so many things that the threads share out among themselves. A step is over when all
// of its things are done, whoever did them: each thread begins with a part of its own, and one that has nothing left
// takes from those that have not come yet. So a thread without a core delays nobody unless it lost it within a tile,
// which is why threads that run for long give their core away between two tiles, before the system takes it.
#pragma once
#include <atomic>
#include <cstdint>

namespace forerun {

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

class Team;

// One thread of a job.
class Member {
   public:
    Member(Team* team, int thread, int num_threads, uint64_t job, uint64_t first_step)
        : team_(team), thread_(thread), num_threads_(num_threads), job_(job), step_(first_step) {}
    int thread() const { return thread_; }
    int num_threads() const { return num_threads_; }

    // The job's next step: calls work(slice) until all of `count` things are done by the members, and returns when they
    // are. Every member must come to every step with the same numbers; what one step writes may only be read within a
    // later one. A slice is at most `tile` things, a multiple of `unit`; of a thread alone it is all of them. False: the job is
    // over, and its context may be gone.
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

    Team* team_;  // null: alone
    const int thread_, num_threads_;
    const uint64_t job_;
    uint64_t step_;
    bool is_over_ = false;
};

using Job = void (*)(void* context, Member& member);

// Runs a job on up to `num_threads` threads, the calling one as number 0, and returns when all its steps are over. While
// another thread's job runs, a job runs on its caller alone: results do not depend on the number of threads.
void run_job(Job job, void* context, int num_threads);

}  // namespace forerun
