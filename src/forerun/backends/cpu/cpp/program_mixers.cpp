// Layers without attention: which rows each row reads, and the division of channels and heads among the threads.
#include "program.h"

namespace forerun {

constexpr int CHANNELS_OF_A_TILE = 512;

static int place_of(const Mixer& mixer, int position) {
    return position < mixer.lag ? 0 : (position - mixer.lag) / mixer.stride * mixer.stride;
}

// A row's place follows from its position, unless it is so deep in a draft's tree that this place is not in committed
// text; it then reads the last one that is. No row of a target's tree is so deep.
void Program::find_paths(const Pass& pass) {
    const Mixer& mixer = *mixer_;
    const bool has_states = mixer.num_states > 0;
    const auto num_rows = static_cast<size_t>(pass.num_rows);
    const int num_tree = pass.first_slot + pass.num_rows - pass.prefix_len;
    if (paths_.size() < num_rows) paths_.resize(num_rows);
    if (pass.ancestry) own_slots_.resize(num_rows * static_cast<size_t>(num_tree));
    int32_t* slots = own_slots_.data();
    int first_place = pass.first_slot + pass.num_rows;
    for (int row = 0; row < pass.num_rows; row++) {
        RowPath& path = paths_[static_cast<size_t>(row)];
        path = {0, pass.first_slot + row, 0, nullptr};
        if (!pass.ancestry) {
            path.place = has_states ? place_of(mixer, path.text_end) : 0;
        } else {
            const uint8_t* marks = pass.ancestry + static_cast<int64_t>(row) * num_tree;
            path.text_end = pass.prefix_len;
            int num_own = 0, num_shared = pass.prefix_len;  // with the committed text
            for (int i = 0; i < num_tree; i++) {
                if (!marks[i]) continue;
                if (i == num_own) num_shared++;
                slots[num_own++] = pass.prefix_len + i;
            }
            if (num_shared > pass.num_committed) num_shared = pass.num_committed;
            const int wanted = place_of(mixer, pass.prefix_len + num_own - 1);
            const int last = num_shared / mixer.stride * mixer.stride;
            path.place = !has_states ? 0 : wanted < last ? wanted : last;
            const int num_before = path.place > pass.prefix_len ? path.place - pass.prefix_len : 0;  // own rows in the state
            path.text_end += num_before;
            path.own = slots + num_before;
            path.num_own = num_own - num_before - 1;  // without the row itself
            slots += num_own;
        }
        if (path.place < first_place) first_place = path.place;
    }
    reach_ = pass.first_slot + pass.num_rows - first_place + 2 * PANEL;
}

// Records the places of the states that a pass computes; before it, that it overwrites the oldest ones, or computes all
// anew because the text has been cut back further than they reach.
void Program::hold_states(const Pass& pass, int first_op, int last_op, bool are_computed) {
    int64_t place = 0, first = 0;
    for (int row = 0; row < pass.num_rows; row++) {
        const int64_t other = paths_[static_cast<size_t>(row)].place;
        if (other > place) place = other;
        if (other && (!first || other < first)) first = other;
    }
    for (int number = first_op; number < last_op; number++) {
        const Op& op = ops_[static_cast<size_t>(number)];
        if (op.kind != static_cast<int32_t>(OpKind::delta_net) || is_skipped(op, pass)) continue;
        const Mixer& net = *op.mixer;
        if (first < net.held[0] && first) net.held[0] = net.held[1] = 0;
        if (place <= net.held[1]) continue;
        const int64_t oldest = place - int64_t{net.num_states - 1} * net.stride;
        if (net.held[0] == 0 && are_computed) net.held[0] = net.stride;
        if (net.held[0] && net.held[0] < oldest) net.held[0] = oldest;
        if (are_computed) net.held[1] = place;
    }
}

bool Program::convolve(const Run& run, const Op& op, Member& self) {
    const Mixer& mixer = *op.mixer;
    return self.share(mixer.num_channels, CHANNELS_OF_A_TILE, [&](Slice columns) {
        run.kernels.convolve(mixer, buffer(op.reads), width(op.reads), paths_.data(), run.pass.num_rows,
                             run.pass.first_slot, columns.begin, columns.end, buffer(op.writes));
    }, PANEL);
}

bool Program::delta_net(const Run& run, const Op& op, Member& self) {
    char* scratch = own_[static_cast<size_t>(self.thread())].data();
    return self.share(op.mixer->num_key_heads, 1, [&](Slice heads) {
        for (int head = heads.begin; head < heads.end; head++)
            run.kernels.delta_net(*op.mixer, buffer(op.reads), buffer(op.residual), width(op.residual), paths_.data(),
                                  run.pass.num_rows, run.pass.first_slot, head, reach_, shape_.eps, buffer(op.writes),
                                  scratch);
    });
}

}  // namespace forerun
