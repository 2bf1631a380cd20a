// A forward pass as a list of ops over named buffers, run by a team of threads in one call.
//
// The ops, their order and their buffers are those of forerun.model.program; Python hands them over once. Two fusions
// save barriers: a norm may be done by each thread for itself just before the linear that reads it, and silu(gate) * up
// as the products of the gate_up linear are written. Both leave every bit as it was.
//
// Everything is sized when rows, context or threads first need it; a pass that fits allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "pool.h"
#include "rank_link.h"

namespace forerun {

enum class OpKind : int32_t {
    embed = 0, norm = 1, linear = 2, rope_append = 3, tree_attention = 4, silu_mul = 5, tap = 6, add_partials = 7,
};

// A buffer: float32, `width` per row. Its rows are those of the pass, or, behind select_rows, its last ones.
struct Buffer {
    float* data;
    int64_t width;
};

struct Op {
    int32_t kind;      // an OpKind
    int32_t reads;     // buffer numbers; -1 for none
    int32_t writes;
    int32_t residual;  // added to a linear's products or to partials, or -1
    int32_t sublayer;  // its number in Pass::skipped and Pass::row_skips, or -1
    int32_t layer;     // of attention; of a tap, the layer whose output it copies
    int32_t after_select;  // reads and writes only the rows whose logits are wanted, the last ones of the pass
    int32_t epilogue;      // of a linear
    Linear linear;
    const float* norm;  // of a norm; of a linear: its input is normed first, or null
    const float* q_norm;
    const float* k_norm;
};

struct Shape {
    Heads heads;
    int32_t num_layers, capacity;  // slots of the cache
    float eps;
    const void* table;  // the embedding [V][H]; null where it is packed
    int32_t table_is_bf16;
    Linear packed_table;  // one whose memory a head shares, or of blocks
    const float* cos_sin;  // [P][2][D]
    void* keys;          // [L][capacity][num_kv_heads][head_dim], values likewise
    void* values;
    int32_t cache_is_bf16;
    int32_t num_sublayers;
    RankLink* link;  // of the ranks whose partials are added up, or null
};

// One forward pass, see forerun.model.inputs.
struct Pass {
    int32_t num_rows, first_slot, prefix_len, num_logit_rows;
    const int64_t* token_ids;
    const int64_t* positions;
    const uint8_t* ancestry;   // [num_rows][first_slot + num_rows - prefix_len], or null
    const uint8_t* skipped;    // [num_sublayers], or null
    const uint8_t* row_skips;  // [num_rows][num_sublayers]: what leaves a row of the residual stream as it was; or null
    const int32_t* taps;       // [num_layers]: which of the features its output becomes, or -1; null: no tap runs
    float* features;           // [num_rows][num_taps][H], written by the taps
    int32_t num_taps;
};

// Bytes that so many prepared rows of a linear take, each on cache lines of its own; and the rows in that memory.
int64_t rows_bytes(const Linear& linear, int num_rows);
Rows rows_in(char* memory, const Linear& linear, int num_rows);

// Memory on cache lines, grown when asked for more.
class Scratch {
   public:
    ~Scratch();
    char* reserve(int64_t num_bytes);
    char* data() const { return data_; }

   private:
    char* data_ = nullptr;
    int64_t size_ = 0;
};

class Program {
   public:
    Program(const Shape& shape, const Op* ops, int num_ops, int num_buffers);
    // Buffers have room for max_rows rows from now on.
    bool set_buffers(const Buffer* buffers, int max_rows);
    void set_output(int buffer, float* data) { buffers_[static_cast<size_t>(buffer)].data = data; }
    // Ops [first_op, last_op) on `num_threads` threads. Every row has its token and its slot; see Pass.
    bool run(const Pass& pass, int first_op, int last_op, int num_threads);

   private:
    struct Run {
        const Pass& pass;
        int first_op, last_op;
        const Kernels& kernels;
        Program* program;
        int first_row(const Op& op) const { return op.after_select ? pass.num_rows - pass.num_logit_rows : 0; }
        int num_rows(const Op& op) const { return op.after_select ? pass.num_logit_rows : pass.num_rows; }
    };
    bool reserve(const Pass& pass, int num_threads);
    bool is_skipped(const Op& op, const Pass& pass) const;
    void work(const Run& run, Member& self);
    void embed(const Run& run, const Op& op, Slice rows);
    void norm(const Run& run, const Op& op, Slice rows);
    void tap(const Run& run, const Op& op, Slice rows);
    void silu_mul(const Run& run, const Op& op, Slice rows);
    // Ops that share themselves out; false: the job is over, see Member.
    bool share_rows(const Run& run, const Op& op, Member& self, void (Program::*work)(const Run&, const Op&, Slice));
    bool linear(const Run& run, const Op& op, Member& self);
    bool rope_append(const Run& run, const Op& op, Member& self);
    bool attention(const Run& run, const Op& op, Member& self);
    bool add_partials(const Run& run, const Op& op, Member& self);
    void add_to_rows(const Run& run, const Op& op, const float* partial, int64_t begin, int64_t end, int64_t first);
    void copy_skipping_rows(const Pass& pass, const Op& op, Slice columns, const float* from, float* to) const;
    void prepare(const Op& op, const Linear& linear, const float* x, Slice rows, Rows out, float* normed);
    bool multiply(const Run& run, const Op& op, const Linear& part, int64_t column, Member& self);
    void multiply_panels(const Run& run, const Op& op, const Linear& part, int64_t column, Rows rows, Slice panels);
    bool attend_whole(const Run& run, const Op& op, Member& self, int rows_per_item);
    bool attend_chunks(const Run& run, const Op& op, Member& self);
    float* buffer(int number) const { return buffers_[static_cast<size_t>(number)].data; }
    int64_t width(int number) const { return buffers_[static_cast<size_t>(number)].width; }
    LayerCache layer_cache(int layer) const;
    Visibility visibility(const Run& run) const;
    // Rows that one call of attention takes at most, and so its partial results; a pass of one row needs a sixteenth.
    static int rows_together(const Pass& pass) {
        return pass.num_rows < ATTENTION_ROWS ? pass.num_rows : ATTENTION_ROWS;
    }
    int num_chunks(const Pass& pass) const { return (pass.first_slot + pass.num_rows - 1) / ATTENTION_CHUNK + 1; }

    const Shape shape_;
    const std::vector<Op> ops_;
    std::vector<Buffer> buffers_;
    int64_t widest_input_ = 0, widest_sum_ = 0;  // floats
    Scratch shared_rows_, partials_;
    Scratch kept_;  // rows of the residual stream that skip the sublayer at hand
    std::vector<Scratch> own_;  // one per thread: prepared rows, a normed row, what attention needs
};

}  // namespace forerun
