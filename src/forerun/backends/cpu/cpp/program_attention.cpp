// Rope and attention of a pass: divides heads, rows and chunks among the threads. The results do not depend on this.
#include "program.h"

namespace forerun {

constexpr int HEADS_OF_A_TILE = 256;  // of rope, each a fraction of a microsecond
constexpr int CHUNKS_OF_A_TILE = 4;

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

LayerCache Program::layer_cache(int layer) const {
    const int64_t elements = static_cast<int64_t>(shape_.capacity) * shape_.slot_size;
    const int64_t offset = elements * layer * element_bytes(shape_.cache_format);
    return {static_cast<char*>(shape_.keys) + offset, static_cast<char*>(shape_.values) + offset, shape_.cache_format,
            shape_.slot_size};
}

Visibility Program::visibility(const Run& run, const Op& op) const {
    const Pass& pass = run.pass;
    const int num_tree = pass.ancestry ? pass.first_slot + pass.num_rows - pass.prefix_len : 0;
    return {pass.num_rows, pass.first_slot, pass.prefix_len, num_tree, pass.ancestry, op.window, shape_.known};
}

// The first chunk that any row from `row` on sees; before it, windows hide everything from all of them.
static int first_chunk(const Visibility& seen, int row) {
    const int shortest = seen.ancestry ? seen.prefix_len + 1 : seen.first_slot + row + 1;
    return seen.window && shortest > seen.window ? (shortest - seen.window) / ATTENTION_CHUNK : 0;
}

bool Program::rope_append(const Run& run, const Op& op, Member& self) {
    const Pass& pass = run.pass;
    const int num_heads = op.heads.num_heads + 2 * op.heads.num_kv_heads;
    return self.share(pass.num_rows * num_heads, HEADS_OF_A_TILE, [&](Slice items) {
        for (int item = items.begin; item < items.end;) {
            const int row = item / num_heads, head = item % num_heads;
            const int last = items.end - item < num_heads - head ? head + items.end - item : num_heads;
            const int position = static_cast<int>(pass.positions[row]);
            run.kernels.rope_append(buffer(op.reads), row, head, last, op.heads, op.cos_sin, position, op.q_norm,
                                    op.k_norm, op.norms_values, shape_.eps,
                                    op.query_scales ? op.query_scales[position] : 1.0f, buffer(op.writes),
                                    layer_cache(op.layer), pass.first_slot + row);
            item += last - head;
        }
    });
}

// The work is divided by heads if they divide evenly; otherwise few rows with a long context are divided by chunks.
bool Program::attention(const Run& run, const Op& op, Member& self) {
    const int num_rows = run.pass.num_rows, num_kv_heads = op.heads.num_kv_heads, size = self.num_threads();
    const bool is_even = num_kv_heads % size == 0;
    if (!is_even && num_rows <= ATTENTION_ROWS && num_chunks(run.pass) > 1) return attend_chunks(run, op, self);
    int rows_per_item = ATTENTION_ROWS;
    if (num_kv_heads * ceil_div(num_rows, ATTENTION_ROWS) < size)
        rows_per_item = ceil_div(num_rows, ceil_div(size, num_kv_heads));
    return attend_whole(run, op, self, rows_per_item);
}

bool Program::attend_whole(const Run& run, const Op& op, Member& self, int rows_per_item) {
    const Heads& heads = op.heads;
    const Visibility seen = visibility(run, op);
    const int group = heads.num_heads / heads.num_kv_heads;
    const int num_blocks = ceil_div(seen.num_rows, rows_per_item);
    const int64_t row_size = static_cast<int64_t>(heads.num_heads) * (2 + heads.head_dim);
    const int64_t chunk_stride = row_size * rows_together(run.pass);
    char* scratch = own_[static_cast<size_t>(self.thread())].data();
    float* partial = reinterpret_cast<float*>(scratch + (attend_scratch_bytes(heads) + 63) / 64 * 64);
    return self.share(num_blocks * heads.num_kv_heads, 1, [&](Slice items) {
        for (int item = items.begin; item < items.end; item++) {
            const int kv_head = item / num_blocks, begin = item % num_blocks * rows_per_item;
            const int end = begin + rows_per_item < seen.num_rows ? begin + rows_per_item : seen.num_rows;
            const int num_chunks = (seen.first_slot + end - 1) / ATTENTION_CHUNK + 1, first = first_chunk(seen, begin);
            float* from_row_0 = partial - begin * row_size;
            for (int chunk = first; chunk < num_chunks; chunk++)
                run.kernels.attend(buffer(op.reads), heads, layer_cache(op.layer), kv_head, begin, end, chunk, seen,
                                   from_row_0 + (chunk - first) * chunk_stride, scratch);
            run.kernels.join(from_row_0, chunk_stride, num_chunks - first, heads, begin, end, kv_head * group,
                             (kv_head + 1) * group, op.sinks, buffer(op.writes));
        }
    });
}

bool Program::attend_chunks(const Run& run, const Op& op, Member& self) {
    const Heads& heads = op.heads;
    const Visibility seen = visibility(run, op);
    const int first = first_chunk(seen, 0), num_chunks = this->num_chunks(run.pass) - first;
    const int64_t chunk_stride = static_cast<int64_t>(heads.num_heads) * (2 + heads.head_dim) * seen.num_rows;
    float* partial = reinterpret_cast<float*>(partials_.data());
    char* scratch = own_[static_cast<size_t>(self.thread())].data();
    const auto attend = [&](Slice items) {
        for (int item = items.begin; item < items.end; item++) {
            const int kv_head = item / num_chunks, chunk = item % num_chunks;
            run.kernels.attend(buffer(op.reads), heads, layer_cache(op.layer), kv_head, 0, seen.num_rows,
                               first + chunk, seen, partial + chunk * chunk_stride, scratch);
        }
    };
    if (!self.share(heads.num_kv_heads * num_chunks, CHUNKS_OF_A_TILE, attend)) return false;
    return self.share(heads.num_heads, heads.num_heads, [&](Slice joined) {
        run.kernels.join(partial, chunk_stride, num_chunks, heads, 0, seen.num_rows, joined.begin, joined.end,
                         op.sinks, buffer(op.writes));
    });
}

}  // namespace forerun
