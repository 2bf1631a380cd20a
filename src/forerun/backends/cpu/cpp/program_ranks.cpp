// Adds the partial results of several ranks for the same rows.
#include <cstring>

#include "program.h"

namespace forerun {

constexpr int ELEMENTS_OF_A_TILE = 1 << 16;

// writes[t] = residual[t] + the partials of all ranks, in rank order; rows that skip the sublayer are unchanged. Without
// a residual the sum begins at 0.
bool Program::add_partials(const Run& run, const Op& op, Member& self) {
    RankLink& link = *shape_.link;
    const float* own = buffer(op.reads);
    const int64_t total = width(op.writes) * run.num_rows(op), room = link.place_bytes() / 4;
    uint64_t number = 0;
    for (int64_t first = 0; first < total; first += room, number++) {
        // The link's number is read only within steps, and written in the last one.
        const auto exchange = [&] { return link.next_exchange() + number; };
        const int count = static_cast<int>(total - first < room ? total - first : room);
        const auto copy = [&](Slice part) {
            std::memcpy(link.own_place(exchange()) + part.begin * int64_t{4}, own + first + part.begin,
                        static_cast<size_t>(part.end - part.begin) * 4);
        };
        const auto add = [&](Slice part) {
            if (op.residual < 0)
                std::memset(buffer(op.writes) + first + part.begin, 0, static_cast<size_t>(part.end - part.begin) * 4);
            for (int rank = 0; rank < link.num_ranks(); rank++)
                add_to_rows(run, op, reinterpret_cast<const float*>(link.place(rank, exchange())), part.begin, part.end,
                            first);
        };
        if (!self.share(count, ELEMENTS_OF_A_TILE, copy, PANEL)) return false;
        if (!self.share(1, 1, [&](Slice) { link.meet(exchange()); })) return false;
        if (!self.share(count, ELEMENTS_OF_A_TILE, add, PANEL)) return false;
    }
    return self.share(1, 1, [&](Slice) { link.set_next_exchange(link.next_exchange() + number); });
}

// Adds elements [begin, end) of a partial that begins with element `first` of all rows.
void Program::add_to_rows(const Run& run, const Op& op, const float* partial, int64_t begin, int64_t end,
                          int64_t first) {
    const int64_t size = width(op.writes);
    float* x = buffer(op.writes) + first;
    while (begin < end) {
        const int64_t row = (first + begin) / size, row_end = (row + 1) * size - first;
        const int64_t stop = row_end < end ? row_end : end;
        const bool is_skipped = run.pass.row_skips && run.pass.row_skips[row * shape_.num_sublayers + op.sublayer];
        if (!is_skipped)
            for (int64_t i = begin; i < stop; i++) x[i] += partial[i];
        begin = stop;
    }
}

}  // namespace forerun
