// Jobs of many steps on more threads than there are cores, each step reading what the one before wrote: every thing is
// done once and nothing is read too early, whoever comes late. For the thread sanitizer:
//
// g++ -std=c++17 -O1 -g -fsanitize=thread -Isrc/forerun/backends/cpu/cpp tests/backends/cpu/check_pool.cpp
//     src/forerun/backends/cpu/cpp/{pool,team}.cpp -o check_pool && ./check_pool
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "pool.h"

using forerun::Member;
using forerun::Slice;

struct Sums {
    std::vector<int> values;
    int num_steps, tile;
};

// Each step adds one to a value and its right neighbour's value of the step before; a row for odd steps and one for even.
static void add_up(void* context, Member& self) {
    Sums& sums = *static_cast<Sums*>(context);
    const int size = static_cast<int>(sums.values.size()) / 2;
    int* const values = sums.values.data();
    for (int step = 0, last = sums.num_steps, tile = sums.tile; step < last; step++) {
        const int *from = values + step % 2 * size;
        int* to = values + (step + 1) % 2 * size;
        const auto work = [&](Slice slice) {
            for (int i = slice.begin; i < slice.end; i++) to[i] = (from[i] + from[(i + 1) % size] + 1) % 1000003;
        };
        if (!self.share(size, tile, work)) return;
    }
}

static bool is_right(int size, int num_steps, int tile, int num_threads) {
    Sums expected{std::vector<int>(static_cast<size_t>(2 * size)), num_steps, tile};
    Sums found = expected, stopped = expected, untouched = expected;
    const int32_t never = 0, at_once = 1;
    forerun::run_job(add_up, &expected, 1);
    forerun::run_job(add_up, &found, num_threads, &never);
    forerun::run_job(add_up, &stopped, num_threads, &at_once);
    return found.values == expected.values && stopped.values == untouched.values;
}

static int run(unsigned seed, int num_jobs) {
    const auto random = [&](int below) { return seed = seed * 1664525u + 1013904223u, static_cast<int>((seed >> 8) % below); };
    int num_wrong = 0;
    for (int job = 0; job < num_jobs; job++)
        num_wrong += !is_right(1 + random(300), 1 + random(40), 1 + random(20), 2 + random(7));
    return num_wrong;
}

int main(int argc, char** argv) {
    const int num_jobs = argc > 1 ? std::atoi(argv[1]) : 2000;
    int wrong[2] = {};
    std::thread other([&] { wrong[1] = run(2, num_jobs); });  // runs its jobs alone while the pool is taken
    wrong[0] = run(1, num_jobs);
    other.join();
    std::printf("%d jobs, %d wrong\n", 2 * num_jobs, wrong[0] + wrong[1]);
    return wrong[0] + wrong[1] != 0;
}
