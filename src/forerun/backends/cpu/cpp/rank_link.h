// Ranks of one host exchange what they have computed through memory that they share.
//
// Every rank has two places for what it gives, used in turn, and for each a number that says which exchange lies there. A
// rank that begins exchange e has seen all others' e - 1, which they gave after they had read e - 2: its own place for e,
// where e - 2 was, is free. So one wait for each exchange is enough.
#pragma once
#include <atomic>
#include <cstdint>

namespace forerun {

class RankLink {
   public:
    // `memory`: link_bytes() of zeros on a cache line, the same for all ranks. A rank that waits for longer than
    // `deadline_s` counts all as lost.
    RankLink(void* memory, int rank, int num_ranks, int64_t place_bytes, double deadline_s);
    static int64_t link_bytes(int num_ranks, int64_t place_bytes);

    int num_ranks() const { return num_ranks_; }
    int64_t place_bytes() const { return place_bytes_; }
    uint64_t next_exchange() const { return next_; }
    void set_next_exchange(uint64_t exchange) { next_ = exchange; }
    char* own_place(uint64_t exchange) const { return place(rank_, exchange); }
    char* place(int rank, uint64_t exchange) const;
    // Says that the own place is filled, and waits until those of all others are. False where somebody was lost.
    bool meet(uint64_t exchange);
    // Nobody waits any more, here or in another process.
    void lose();
    bool is_lost() const;
    // `num_bytes` of every rank, in their order. False where somebody was lost.
    bool gather(const char* own, int64_t num_bytes, char* all);

   private:
    struct alignas(64) Number {
        std::atomic<uint64_t> value;
    };
    Number& filled(int rank, uint64_t exchange) const;

    Number* const lost_;     // 1 where somebody was lost
    Number* const numbers_;  // [num_ranks][2]
    char* const places_;     // [num_ranks][2][place_bytes]
    const int rank_, num_ranks_;
    const int64_t place_bytes_;
    const double deadline_s_;
    uint64_t next_ = 1;
};

}  // namespace forerun
