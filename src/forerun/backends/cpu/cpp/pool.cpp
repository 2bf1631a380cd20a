#include "pool.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "export.h"
#include "pause.h"
#include "team.h"

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

namespace forerun {
namespace {

// A sleeping thread takes tens of microseconds to wake, so it must not sleep between the passes of one request. Between
// requests it must not keep a core busy.
constexpr auto SPIN_BETWEEN_JOBS = std::chrono::microseconds(1000);

class Pool {
   public:
    bool try_run(Job job, void* context, int num_threads, const int32_t* stop) {
        std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
        if (!turn.owns_lock()) return false;
        start_workers(num_threads - 1);
        job_ = job, context_ = context, stop_ = stop;
        first_step_ = team_.step();
        const uint64_t ticket = ((ticket_.load(std::memory_order_relaxed) >> 8) + 1) << 8 |
                                static_cast<uint64_t>(num_threads);
        team_.open(ticket);
        ticket_.store(ticket, std::memory_order_seq_cst);
        if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        look_anew();
        Member self(&team_, 0, num_threads, ticket, first_step_, stop_);
        job(context, self);
        team_.close();
        return true;
    }

    void set_cores(const int* cores, int num_cores) {
        std::lock_guard<std::mutex> turn(turn_);
        if (std::vector<int>(cores, cores + num_cores) == cores_) return;
        cores_.assign(cores, cores + num_cores);
        for (auto& worker : workers_) pin(worker);
    }

   private:
    void start_workers(int count) {
        while (static_cast<int>(workers_.size()) < count) {
            const int number = static_cast<int>(workers_.size()) + 1;
            const uint64_t seen = ticket_.load(std::memory_order_relaxed);
            workers_.emplace_back([this, number, seen] { work(number, seen); });
            pin(workers_.back());
        }
    }

    void pin(std::thread& worker) {
#ifdef __linux__
        if (cores_.empty()) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int core : cores_) CPU_SET(core, &set);
        pthread_setaffinity_np(worker.native_handle(), sizeof set, &set);
#else
        (void)worker;
#endif
    }

    [[noreturn]] void work(int number, uint64_t seen) {
        for (;;) {
            const uint64_t ticket = seen = next_ticket(seen);
            const int num_threads = static_cast<int>(ticket & 0xff);
            if (number >= num_threads || !team_.enter(ticket)) continue;  // its fields may belong to another job
            Member self(&team_, number, num_threads, ticket, first_step_, stop_);
            job_(context_, self);
            self.leave();
        }
    }

    uint64_t next_ticket(uint64_t seen) {
        const auto end = std::chrono::steady_clock::now() + SPIN_BETWEEN_JOBS;
        for (int i = 1;; i++) {
            const uint64_t ticket = ticket_.load(std::memory_order_acquire);
            if (ticket != seen) return ticket;
            pause();
            if (i % PAUSES_BETWEEN_LOOKS) continue;
            if (std::chrono::steady_clock::now() > end) break;
            let_others_run();
        }
        std::unique_lock<std::mutex> lock(sleep_);
        num_asleep_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return ticket_.load(std::memory_order_seq_cst) != seen; });
        num_asleep_.fetch_sub(1, std::memory_order_relaxed);
        look_anew();
        return ticket_.load(std::memory_order_acquire);
    }

    std::mutex turn_, sleep_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
    std::vector<int> cores_;
    Job job_ = nullptr;
    void* context_ = nullptr;
    const int32_t* stop_ = nullptr;
    uint64_t first_step_ = 0;
    Team team_;
    alignas(64) std::atomic<uint64_t> ticket_{0};  // number of the job, with its number of threads in the low byte
    alignas(64) std::atomic<int> num_asleep_{0};
};

std::atomic<Pool*> current{nullptr};

// Never destroyed; its threads end with the process. After a fork the child has no threads, so it gets a new pool.
Pool& pool() {
    static const bool is_set_up = [] {
        current.store(new Pool);
#ifndef _WIN32
        pthread_atfork(nullptr, nullptr, [] { current.store(new Pool); });
#endif
        return true;
    }();
    (void)is_set_up;
    return *current.load();
}

}  // namespace

void run_job(Job job, void* context, int num_threads, const int32_t* stop) {
    if (num_threads > MOST_THREADS) num_threads = MOST_THREADS;
    if (num_threads > 1 && pool().try_run(job, context, num_threads, stop)) return;
    Member alone(nullptr, 0, 1, 0, 0, stop);
    job(context, alone);
}

}  // namespace forerun

// Pins the pool's threads to these cores, but not the calling thread.
FORERUN_EXPORT void forerun_set_cores(const int* cores, int num_cores) { forerun::pool().set_cores(cores, num_cores); }
