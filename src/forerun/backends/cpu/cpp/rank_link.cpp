#include "rank_link.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "export.h"
#include "pause.h"

namespace forerun {

constexpr int64_t LINE = 64;
constexpr int PAUSES_BEFORE_YIELD = 4000;  // some tens of microseconds; then another thread may need this core
constexpr int YIELDS_BETWEEN_LOOKS = 64;   // between two readings of the clock

int64_t RankLink::link_bytes(int num_ranks, int64_t place_bytes) {
    return LINE + 2 * num_ranks * (LINE + place_bytes);
}

RankLink::RankLink(void* memory, int rank, int num_ranks, int64_t place_bytes, double deadline_s)
    : lost_(static_cast<Number*>(memory)),
      numbers_(lost_ + 1),
      places_(reinterpret_cast<char*>(numbers_ + 2 * num_ranks)),
      rank_(rank),
      num_ranks_(num_ranks),
      place_bytes_(place_bytes),
      deadline_s_(deadline_s) {}

RankLink::Number& RankLink::filled(int rank, uint64_t exchange) const { return numbers_[2 * rank + exchange % 2]; }

char* RankLink::place(int rank, uint64_t exchange) const {
    return places_ + (2 * rank + static_cast<int64_t>(exchange % 2)) * place_bytes_;
}

void RankLink::lose() { lost_->value.store(1, std::memory_order_release); }

bool RankLink::is_lost() const { return lost_->value.load(std::memory_order_acquire) != 0; }

bool RankLink::meet(uint64_t exchange) {
    filled(rank_, exchange).value.store(exchange, std::memory_order_release);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_s_);
    for (int other = 0; other < num_ranks_; other++) {
        const std::atomic<uint64_t>& number = filled(other, exchange).value;
        for (int i = 0; number.load(std::memory_order_acquire) < exchange; i++) {
            if (is_lost()) return false;
            if (i < PAUSES_BEFORE_YIELD) {
                pause();
                continue;
            }
            std::this_thread::yield();
            if (i % YIELDS_BETWEEN_LOOKS == 0 && std::chrono::steady_clock::now() > deadline) lose();
        }
    }
    return !is_lost();
}

bool RankLink::gather(const char* own, int64_t num_bytes, char* all) {
    for (int64_t first = 0; first < num_bytes; first += place_bytes_, next_++) {
        const size_t count = static_cast<size_t>(num_bytes - first < place_bytes_ ? num_bytes - first : place_bytes_);
        std::memcpy(own_place(next_), own + first, count);
        if (!meet(next_)) return false;
        for (int rank = 0; rank < num_ranks_; rank++)
            std::memcpy(all + rank * num_bytes + first, place(rank, next_), count);
    }
    return true;
}

}  // namespace forerun

using forerun::RankLink;

FORERUN_EXPORT int64_t forerun_link_bytes(int num_ranks, int64_t place_bytes) {
    return RankLink::link_bytes(num_ranks, place_bytes);
}

// See RankLink.
FORERUN_EXPORT void* forerun_link_new(void* memory, int rank, int num_ranks, int64_t place_bytes, double deadline_s) {
    return new RankLink(memory, rank, num_ranks, place_bytes, deadline_s);
}

FORERUN_EXPORT void forerun_link_free(void* link) { delete static_cast<RankLink*>(link); }

FORERUN_EXPORT void forerun_link_lose(void* link) { static_cast<RankLink*>(link)->lose(); }

FORERUN_EXPORT bool forerun_link_is_lost(void* link) { return static_cast<RankLink*>(link)->is_lost(); }

FORERUN_EXPORT bool forerun_link_gather(void* link, const char* own, int64_t num_bytes, char* all) {
    return static_cast<RankLink*>(link)->gather(own, num_bytes, all);
}
