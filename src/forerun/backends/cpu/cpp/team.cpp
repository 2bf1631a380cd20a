#include "team.h"

#include <chrono>
#include <thread>

#include "export.h"
#include "pause.h"

namespace forerun {
namespace {

using Clock = std::chrono::steady_clock;

// The scheduler preempts a thread after some milliseconds if others want its core. Yielding shortly before that costs
// little CPU time: Linux 6.18 treats a thread that yields as one that has used up its time slice.
constexpr auto LONG_RUN = std::chrono::microseconds(1000);
constexpr auto AWAY = std::chrono::microseconds(2500);  // a longer time between two readings means the core was lost
constexpr auto TAKEN = std::chrono::microseconds(200);  // if yielding takes longer, another thread wanted the core
constexpr int PAUSES_BEFORE_TAKING = 64;  // items of other threads: some microseconds, since most end soon
constexpr int PAUSES_BEFORE_YIELD = 2000;  // some tens of microseconds; then the other thread has lost its core
constexpr int TAKEN_BITS = 24;

std::atomic<uint64_t> num_stops{0};
thread_local Clock::time_point since, last;  // when this thread got its core; its last look at the clock

}  // namespace

void look_anew() {
    const Clock::time_point now = Clock::now();
    if (now - last > AWAY) since = now;
    last = now;
}

void let_others_run() {
    Clock::time_point now = Clock::now();
    bool is_stopped = false;
    if (now - last > AWAY) {
        is_stopped = true;
        since = now;
    } else if (now - since >= LONG_RUN) {
        std::this_thread::yield();
        since = Clock::now();
        is_stopped = since - now > TAKEN;
        now = since;
    }
    last = now;
    if (is_stopped) num_stops.fetch_add(1, std::memory_order_relaxed);
}

bool Team::enter(uint64_t job) {
    num_inside_.fetch_add(1, std::memory_order_seq_cst);
    if (open_job_.load(std::memory_order_seq_cst) == job) return true;
    leave();
    return false;
}

void Team::close() {
    open_job_.store(0, std::memory_order_seq_cst);
    for (int i = 1; num_inside_.load(std::memory_order_seq_cst) != 0; i++) {
        pause();
        if (i % PAUSES_BETWEEN_LOOKS == 0) std::this_thread::yield();
    }
}

Slice Team::take(uint64_t step, int count, int thread, int num_threads, int tile, int unit) {
    const Slice part = slice_of(count, thread, num_threads, unit);
    std::atomic<uint64_t>& word = parts_[thread].taken;
    uint64_t seen = word.load(std::memory_order_acquire);
    for (;;) {
        // Checked after reading the word: if the step is over, its items were all taken, so the word has changed.
        if (step_.load(std::memory_order_acquire) != step) return {0, 0};
        const int taken = seen >> TAKEN_BITS == step ? static_cast<int>(seen & ((1 << TAKEN_BITS) - 1)) : 0;
        const int begin = part.begin + taken, left = part.end - begin;
        if (left <= 0) return {0, 0};
        const int size = left < tile ? left : tile;
        const uint64_t wanted = step << TAKEN_BITS | static_cast<uint64_t>(taken + size);
        if (word.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel)) return {begin, begin + size};
    }
}

void Team::finish(uint64_t step, int num_done, int count) {
    if (num_done_.fetch_add(num_done, std::memory_order_acq_rel) + num_done < count) return;
    num_done_.store(0, std::memory_order_relaxed);
    step_.store(step + 1, std::memory_order_release);
}

bool Member::share_by(int count, int tile, int unit, Tile work, void* context) {
    if (count <= 0 || is_over_) return !is_over_;
    if (!team_) {
        const int size = stop_ && tile < count ? tile : count;
        for (int begin = 0; begin < count && !is_given_up(); begin += size)
            work(context, {begin, count - begin < size ? count : begin + size});
        return true;
    }
    do_part_of(thread_, count, tile, unit, work, context);
    for (int i = 1; team_->step() == step_; i++) {
        pause();
        if (i == PAUSES_BEFORE_TAKING)
            for (int other = 1; other < num_threads_; other++)
                do_part_of((thread_ + other) % num_threads_, count, tile, unit, work, context);
        if (i >= PAUSES_BEFORE_YIELD && thread_ != 0) return wait_outside();
        if (i >= PAUSES_BEFORE_YIELD && i % PAUSES_BETWEEN_LOOKS == 0) std::this_thread::yield();
    }
    step_++;
    return true;
}

void Member::do_part_of(int thread, int count, int tile, int unit, Tile work, void* context) {
    for (;;) {
        const Slice slice = team_->take(step_, count, thread, num_threads_, tile, unit);
        if (slice.begin == slice.end) return;
        if (!is_given_up()) work(context, slice);
        team_->finish(step_, slice.end - slice.begin, count);
        let_others_run();
    }
}

// Waits for the end of a long step. This thread may lose its core until the job ends, and the job must not wait for it.
bool Member::wait_outside() {
    team_->leave();
    for (int i = 1; team_->step() == step_; i++) {
        pause();
        if (i % PAUSES_BETWEEN_LOOKS == 0) std::this_thread::yield();
    }
    step_++;
    is_over_ = !team_->enter(job_);
    return !is_over_;
}

void Member::leave() {
    if (!is_over_) team_->leave();
}

}  // namespace forerun

// How often threads have found that others had used their core for a while.
FORERUN_EXPORT uint64_t forerun_num_stops() { return forerun::num_stops.load(std::memory_order_relaxed); }
