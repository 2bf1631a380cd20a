#include "program.h"

#include <cstring>

#include "blocks.h"
#include "memory.h"

namespace forerun {

// Up to this many inputs every thread prepares all rows for itself, which is cheaper than another step.
constexpr int64_t MOST_PREPARED_ALONE = 1 << 16;
constexpr int64_t LINE = 64;
constexpr int ROWS_OF_A_TILE = 64;
constexpr int64_t WEIGHTS_OF_A_TILE = 1 << 20;  // for one row: 50 to 100 us
constexpr int ROWS_AS_DEAR = 8;  // this many additional rows take as long as the first

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

Scratch::~Scratch() { free_aligned(data_); }

char* Scratch::reserve(int64_t num_bytes) {
    if (num_bytes > size_) {
        free_aligned(data_);
        const int64_t wanted = round_up(num_bytes + num_bytes / 4, LINE);
        data_ = static_cast<char*>(allocate_aligned(LINE, static_cast<size_t>(wanted)));
        size_ = data_ ? wanted : 0;
    }
    return data_;
}

static bool is_grouped(const Linear& linear) {
    return linear.format == static_cast<int32_t>(Format::int8) || linear.format == static_cast<int32_t>(Format::int4);
}

// An odd number of cache lines, since rows at a distance of a power of two would all map to the same cache sets.
static int64_t row_stride(const Linear& linear, int input_bits) {
    return round_up(static_cast<int64_t>(linear.padded_in) * input_bits / 8, LINE) | LINE;
}

static int num_tiles(int num_rows) { return (num_rows + 15) / 16; }  // by tiles of sixteen rows; see matrix_unit.h

// The largest number of bits per prepared input in any instruction set, so that the memory is enough for all of them.
static int most_input_bits(const Linear& linear) { return is_grouped(linear) ? 16 : 32; }

int64_t rows_bytes(const Linear& linear, int num_rows) {
    const int bits = most_input_bits(linear);
    const int64_t groups = linear.group ? linear.padded_in / linear.group : 0;
    if (is_blocks(linear.format)) return groups * input_group_bytes(linear.group, bits) * 16 * num_tiles(num_rows);
    return (row_stride(linear, bits) + groups * 8) * num_rows;
}

Rows rows_in(char* memory, const Linear& linear, int num_rows, bool of_experts) {
    Rows rows{};
    const int bits = kernels().input_bits(linear);
    rows.values = memory;
    rows.num_rows = num_rows;
    if (is_blocks(linear.format)) {  // by group, then by row, so that a tile's rows are at fixed distances
        const int tile_bytes = of_experts ? 0 : kernels().tile_bytes(linear, num_rows);
        rows.by_tiles = tile_bytes > 0;
        rows.stride = rows.by_tiles ? tile_bytes : input_group_bytes(linear.group, bits);
        rows.group_stride = rows.stride * (rows.by_tiles ? num_tiles(num_rows) : num_rows);
        return rows;
    }
    const int64_t groups = is_grouped(linear) ? linear.padded_in / linear.group : 0;
    rows.stride = row_stride(linear, bits);
    char* behind = memory + rows.stride * num_rows;
    rows.scales = reinterpret_cast<float*>(behind);
    rows.sums = reinterpret_cast<int32_t*>(behind + groups * num_rows * 4);
    return rows;
}

static int64_t width_of_sum(const Op& op) {
    int64_t width = 0;
    for (const Linear* part = &op.linear; part; part = part->below) width += part->num_out;
    return width;
}

Program::Program(const Shape& shape, const Op* ops, int num_ops, int num_buffers)
    : shape_(shape), ops_(ops, ops + num_ops), buffers_(static_cast<size_t>(num_buffers)) {
    for (const Op& op : ops_) {
        if (op.mixer) mixer_ = op.mixer;
        if (op.experts && op.experts->num_chosen > most_chosen_) most_chosen_ = op.experts->num_chosen;
        if (op.experts && op.experts->num_experts > most_experts_) most_experts_ = op.experts->num_experts;
        if (op.kind == static_cast<int32_t>(OpKind::tree_attention)) {
            const int64_t scratch = round_up(attend_scratch_bytes(op.heads), LINE);
            const int64_t result = static_cast<int64_t>(op.heads.num_heads) * (2 + op.heads.head_dim) * 4;
            if (scratch > most_scratch_) most_scratch_ = scratch;
            if (result > most_result_) most_result_ = result;
        }
        if (op.kind != static_cast<int32_t>(OpKind::linear)) continue;
        for (const Linear* part = &op.linear; part; part = part->below)
            if (part->padded_in > widest_input_) widest_input_ = part->padded_in;
        if (op.residual >= 0 && width_of_sum(op) > widest_sum_) widest_sum_ = width_of_sum(op);
    }
}

bool Program::set_buffers(const Buffer* buffers, int max_rows) {
    std::memcpy(buffers_.data(), buffers, buffers_.size() * sizeof(Buffer));
    int64_t most = 0;
    for (const Op& op : ops_) {
        if (const Experts* experts = op.experts)
            for (const Linear* part : {experts->gate_up, experts->out}) {
                const int64_t num_bytes = rows_bytes(*part, max_rows * experts->num_chosen);
                if (num_bytes > most) most = num_bytes;
            }
        if (op.kind != static_cast<int32_t>(OpKind::linear)) continue;
        for (const Linear* part = &op.linear; part; part = part->below)
            if (rows_bytes(*part, max_rows) > most) most = rows_bytes(*part, max_rows);
    }
    return shared_rows_.reserve(most) || !most;
}

// Memory of one thread: a normed row and prepared rows, or attention's scratch and partial results. False if there is
// not enough memory.
bool Program::reserve(const Pass& pass, int num_threads) {
    const int64_t prepared = round_up(widest_input_ * 4, LINE) + MOST_PREPARED_ALONE * 9 + 2 * LINE * pass.num_rows;
    const int64_t attention = most_scratch_ + most_result_ * rows_together(pass) * num_chunks(pass);
    const int64_t mixer = mixer_ && mixer_->num_states ? mixer_scratch_bytes(*mixer_, reach_) : 0;
    const int64_t most = attention > mixer ? attention : mixer;
    if (most_chosen_) {
        const auto num_pairs = static_cast<size_t>(pass.num_rows) * static_cast<size_t>(most_chosen_);
        for (std::vector<int32_t>* pairs : {&choice_.chosen, &choice_.places, &choice_.rows})
            if (pairs->size() < num_pairs) pairs->resize(num_pairs);
        if (choice_.shares.size() < num_pairs) choice_.shares.resize(num_pairs);
        choice_.begins.resize(static_cast<size_t>(most_experts_) + 1);
        choice_.wanted.resize(static_cast<size_t>(most_experts_));
    }
    if (static_cast<int>(own_.size()) < num_threads) own_ = std::vector<Scratch>(static_cast<size_t>(num_threads));
    for (Scratch& own : own_)
        if (!own.reserve(prepared > most ? prepared : most)) return false;
    const int64_t partials = pass.num_rows <= ATTENTION_ROWS ? most_result_ * pass.num_rows * num_chunks(pass) : 0;
    const int64_t kept = pass.row_skips ? widest_sum_ * 4 * pass.num_rows : 0;
    return (!partials || partials_.reserve(partials)) && (!kept || kept_.reserve(kept));
}

bool Program::is_skipped(const Op& op, const Pass& pass) const {
    if (op.after_select && !pass.num_logit_rows) return true;
    if (op.kind == static_cast<int32_t>(OpKind::tap)) return !pass.taps || pass.taps[op.layer] < 0;
    return pass.skipped && op.sublayer >= 0 && pass.skipped[op.sublayer];
}

bool Program::run(const Pass& pass, int first_op, int last_op, int num_threads) {
    if (mixer_) find_paths(pass);
    if (!reserve(pass, num_threads)) return false;
    if (mixer_) hold_states(pass, first_op, last_op, false);
    Run run{pass, first_op, last_op, forerun::kernels(), this};
    run_job(
        [](void* context, Member& self) {
            const Run& run = *static_cast<const Run*>(context);
            run.program->work(run, self);
        },
        &run, num_threads, pass.stop);
    if (mixer_ && !(pass.stop && *pass.stop)) hold_states(pass, first_op, last_op, true);
    return true;
}

void Program::work(const Run& run, Member& self) {
    const auto run_op = [&](const Op& op) {
        switch (static_cast<OpKind>(op.kind)) {
            case OpKind::embed: return share_rows(run, op, self, &Program::embed);
            case OpKind::norm: return share_rows(run, op, self, &Program::norm);
            case OpKind::tap: return share_rows(run, op, self, &Program::tap);
            case OpKind::silu_mul:
            case OpKind::gelu_mul: return share_rows(run, op, self, &Program::gate);
            case OpKind::norm_add: return share_rows(run, op, self, &Program::norm_add);
            case OpKind::norm_qk: return share_rows(run, op, self, &Program::norm_qk);
            case OpKind::linear: return linear(run, op, self);
            case OpKind::rope_append: return rope_append(run, op, self);
            case OpKind::tree_attention: return attention(run, op, self);
            case OpKind::add_partials: return add_partials(run, op, self);
            case OpKind::experts: return experts(run, op, self);
            case OpKind::scale: return share_rows(run, op, self, &Program::scale);
            case OpKind::layer_inputs: return share_rows(run, op, self, &Program::layer_inputs);
            case OpKind::gate_input: return share_rows(run, op, self, &Program::gate_input);
            case OpKind::add: return share_rows(run, op, self, &Program::add);
            case OpKind::sigmoid_mul: return share_rows(run, op, self, &Program::sigmoid_mul);
            case OpKind::convolve: return convolve(run, op, self);
            case OpKind::delta_net: return delta_net(run, op, self);
        }
        return true;
    };
    const Op* const ops = ops_.data();
    for (int number = run.first_op, last = run.last_op; number < last; number++)
        if (!is_skipped(ops[number], run.pass) && !run_op(ops[number])) return;
}

bool Program::share_rows(const Run& run, const Op& op, Member& self,
                         void (Program::*work)(const Run&, const Op&, Slice)) {
    return self.share(run.num_rows(op), ROWS_OF_A_TILE, [&](Slice rows) { (this->*work)(run, op, rows); });
}

// Converts rows of x to the linear's input format, after a norm if the op has one.
void Program::prepare(const Op& op, const Linear& linear, const float* x, Slice rows, Rows out, float* normed) {
    const Kernels& table = forerun::kernels();
    const int64_t size = linear.num_in;
    if (!op.norm) {
        table.prepare(linear, x, size, rows.begin, rows.end, out);
        return;
    }
    for (int row = rows.begin; row < rows.end; row++) {
        table.rms_norm(x + row * size, size, op.norm, linear.num_in, shape_.eps, 0, 1, normed, size);
        table.prepare(linear, normed - row * size, size, row, row + 1, out);
    }
}

// Copies some columns of the rows that skip the op's sublayer between buffers as wide as its output.
void Program::copy_skipping_rows(const Pass& pass, const Op& op, Slice columns, const float* from, float* to) const {
    const int64_t size = width(op.writes);
    const size_t bytes = static_cast<size_t>(columns.end - columns.begin) * 4;
    for (int row = 0; row < pass.num_rows; row++) {
        if (!pass.row_skips[static_cast<int64_t>(row) * shape_.num_sublayers + op.sublayer]) continue;
        std::memcpy(to + row * size + columns.begin, from + row * size + columns.begin, bytes);
    }
}

bool Program::linear(const Run& run, const Op& op, Member& self) {
    int64_t column = 0;
    for (const Linear* part = &op.linear; part; column += part->num_out, part = part->below)
        if (!multiply(run, op, *part, column, self)) return false;
    return true;
}

int panels_of_a_tile(const Linear& linear, int num_rows) {
    const int64_t pairs = WEIGHTS_OF_A_TILE * ROWS_AS_DEAR / (ROWS_AS_DEAR + num_rows) / (2 * PANEL * linear.padded_in);
    const int64_t least = num_rows >= ROWS_OF_A_TILE ? PAIRS_TOGETHER : 1;
    return static_cast<int>(2 * (pairs > least ? pairs : least));
}

// Computes the products of one part of a linear, which go to the buffer's columns from `column` on.
bool Program::multiply(const Run& run, const Op& op, const Linear& linear, int64_t column, Member& self) {
    const int num_rows = run.num_rows(op);
    const bool reads_all_rows = op.after_select && op.norm;  // the norm was fused into the head: it reads the whole x
    const float* x = buffer(op.reads) + (reads_all_rows ? run.first_row(op) * width(op.reads) : 0);
    char* own = own_[static_cast<size_t>(self.thread())].data();
    float* normed = reinterpret_cast<float*>(own);
    const bool fits = static_cast<int64_t>(num_rows) * linear.padded_in <= MOST_PREPARED_ALONE;
    const Rows rows = rows_in(fits ? own + round_up(widest_input_ * 4, LINE) : shared_rows_.data(), linear, num_rows);
    bool is_prepared = !fits;
    if (!fits && !self.share(num_rows, ROWS_OF_A_TILE, [&](Slice some) { prepare(op, linear, x, some, rows, normed); }))
        return false;
    const auto work = [&](Slice panels) {
        if (!is_prepared) prepare(op, linear, x, {0, num_rows}, rows, normed);
        is_prepared = true;
        multiply_panels(run, op, linear, column, rows, panels);
    };
    return self.share(num_panels(linear), panels_of_a_tile(linear, num_rows), work, 2);
}

void Program::multiply_panels(const Run& run, const Op& op, const Linear& linear, int64_t column, Rows rows,
                              Slice panels) {
    Output out{};
    out.y = buffer(op.writes) + column;
    out.y_stride = width(op.writes);
    out.epilogue = static_cast<Epilogue>(op.epilogue);
    out.cap = op.factor;
    if (op.residual >= 0) out.residual = buffer(op.residual) + column, out.residual_stride = width(op.residual);
    // The sum is in place, so rows that skip it are restored. No other thread reads or writes these columns.
    const bool has_gates = run.pass.row_skips && op.residual >= 0;
    const int last = panels.end * PANEL, first_column = static_cast<int>(column);
    const Slice columns{first_column + panels.begin * PANEL,
                        first_column + (last < linear.num_out ? last : linear.num_out)};
    float *kept = reinterpret_cast<float*>(kept_.data()), *written = buffer(op.writes);
    if (has_gates) copy_skipping_rows(run.pass, op, columns, written, kept);
    run.kernels.linear(linear, rows, run.num_rows(op), panels.begin, panels.end, out);
    if (has_gates) copy_skipping_rows(run.pass, op, columns, kept, written);
}

}  // namespace forerun
