// Exchange of partial results between ranks on one host through shared memory.
//
// Every rank has two buffers for its data, used alternately, and for each the number of the exchange whose data it
// contains. A rank that begins exchange e has seen the data of e - 1 from all others, which they wrote after reading
// e - 2. So its own buffer of e - 2 is free for e, and one wait per exchange is enough.
#pragma once
#include <atomic>
#include <cstdint>

namespace forerun {

class RankLink {
   public:
    // `memory`: link_bytes() zeros, aligned to a cache line and shared by all ranks. If a rank waits longer than
    // `deadline_s`, the group counts as lost.
    RankLink(void* memory, int rank, int num_ranks, int64_t place_bytes, double deadline_s);
    static int64_t link_bytes(int num_ranks, int64_t place_bytes);

    int num_ranks() const { return num_ranks_; }
    int64_t place_bytes() const { return place_bytes_; }
    uint64_t next_exchange() const { return next_; }
    void set_next_exchange(uint64_t exchange) { next_ = exchange; }
    char* own_place(uint64_t exchange) const { return place(rank_, exchange); }
    char* place(int rank, uint64_t exchange) const;
    // Marks this rank's buffer as filled and waits for those of all others. False if a rank was lost.
    bool meet(uint64_t exchange);
    // Marks the group as lost, so that all ranks stop waiting, also in other processes.
    void lose();
    bool is_lost() const;
    // Collects `num_bytes` from every rank, in rank order. False if a rank was lost.
    bool gather(const char* own, int64_t num_bytes, char* all);

   private:
    struct alignas(64) Number {
        std::atomic<uint64_t> value;
    };
    Number& filled(int rank, uint64_t exchange) const;

    Number* const lost_;     // 1 if a rank was lost
    Number* const numbers_;  // [num_ranks][2]
    char* const places_;     // [num_ranks][2][place_bytes]
    const int rank_, num_ranks_;
    const int64_t place_bytes_;
    const double deadline_s_;
    uint64_t next_ = 1;
};

}  // namespace forerun
