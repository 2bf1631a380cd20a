// A forward pass as a list of ops over named buffers, run by a team of threads in one call.
//
// The ops, their order and their buffers are those of forerun.model.program; Python passes them once. Two fusions save
// barriers: each thread may compute a norm for itself just before the linear that reads it, and silu(gate) * up may be
// computed when the products of the gate_up linear are written. Neither changes any bit of the result.
//
// Memory is allocated when the number of rows, the context or the number of threads grows; other passes allocate none.
#pragma once
#include <atomic>
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
    norm_add = 8, norm_qk = 9, gelu_mul = 10, experts = 11, scale = 12, layer_inputs = 13, gate_input = 14,
    add = 15, sigmoid_mul = 16, convolve = 17, delta_net = 18,
};

// A buffer of float32 with `width` elements per row. It has the rows of the pass or, after select_rows, the last ones.
struct Buffer {
    float* data;
    int64_t width;
};

// The experts of a layer, all of one shape and format. A pair is a row with an expert that it chose; pairs are in the
// order of experts, then rows.
struct Experts {
    const Linear* gate_up;  // [num_experts], paired
    const Linear* out;      // [num_experts]
    int32_t num_experts, num_chosen;  // num_chosen: of each row
    int32_t router;                   // buffer of the scores by which rows choose, [T][num_experts]
    int32_t gated, products;          // buffers for each pair's gated features and for what its expert gives
};

struct Op {
    int32_t kind;      // an OpKind
    int32_t reads;     // buffer numbers; -1 for none
    int32_t writes;
    int32_t residual;  // added to a linear's products or to partials; of gate_input, the inputs of all layers; of
                       // sigmoid_mul, the gate; of delta_net, what its mixer's first product gives; or -1
    int32_t sublayer;  // its index in Pass::skipped and Pass::row_skips, or -1
    int32_t layer;     // of attention, that whose keys and values it reads; of a tap, that whose output it copies
    int32_t after_select;  // reads and writes only the last rows of the pass, those whose logits are needed
    int32_t epilogue;      // of a linear
    int32_t window;        // of attention: slots that a row sees at most, or 0
    int32_t norms_values;  // of rope_append
    float factor;          // of scale; of layer_inputs, of the projection; the cap of capped logits
    Heads heads;           // of attention and what precedes it; no key/value heads if there are queries alone
    Linear linear;
    const float* norm;  // weights of a norm; for a linear, of the norm applied to its input, or null
    const float* q_norm;
    const float* k_norm;
    const float* cos_sin;       // [P][2][D], of rope_append
    const float* query_scales;  // [P], or null
    const float* sinks;         // [num_heads], of attention, or null
    const Experts* experts;     // or null
    const Mixer* mixer;         // or null
};

// Rows by token.
struct Table {
    const void* values;  // null where it is packed
    int32_t is_bf16;
    Linear packed;  // a table that is tied to the head or has blocks
};

struct Shape {
    int32_t num_layers, capacity;  // slots of the cache
    float eps, embedding_scale;
    Table table;        // the embedding [V][H]
    Table layer_table;  // [V][L * layer_input_size]: the embeddings for each layer
    float layer_table_scale;
    int32_t layer_input_size;  // 0: there are none
    void* keys;                // [L][capacity][slot_size], values likewise
    void* values;
    int32_t slot_size;  // elements of a slot in a layer, as many as the layer with the most key/value heads needs
    CacheFormat cache_format;
    const uint8_t* known;  // [capacity], see Visibility; or null
    int32_t num_sublayers;
    RankLink* link;  // to the ranks whose partials are added, or null
};

// One forward pass, see forerun.model.inputs.
struct Pass {
    int32_t num_rows, first_slot, prefix_len, num_logit_rows;
    int32_t num_committed;  // tokens of the text
    const int64_t* token_ids;
    const int64_t* positions;
    const uint8_t* ancestry;   // [num_rows][first_slot + num_rows - prefix_len], or null
    const uint8_t* skipped;    // [num_sublayers], or null
    const uint8_t* row_skips;  // [num_rows][num_sublayers]: sublayers that a row skips; or null
    const int32_t* taps;       // [num_layers]: index of the layer's output in the features, or -1; null: no taps
    float* features;           // [num_rows][num_taps][H], written by the taps
    int32_t num_taps;
    const int32_t* stop;  // 1: the pass is given up, see run_job; null: it cannot be
};

// Bytes of this many prepared rows of a linear, each aligned to cache lines; and the rows in that memory.
int64_t rows_bytes(const Linear& linear, int num_rows);
// An expert may have few of the rows, so its rows never lie by tiles.
Rows rows_in(char* memory, const Linear& linear, int num_rows, bool of_experts = false);

// Panels that a thread takes at a time, such that the time is about the same for any number of rows.
int panels_of_a_tile(const Linear& linear, int num_rows);

// Memory aligned to cache lines that grows when more is requested.
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
    // Sets new buffers with room for max_rows rows.
    bool set_buffers(const Buffer* buffers, int max_rows);
    void set_output(int buffer, float* data) { buffers_[static_cast<size_t>(buffer)].data = data; }
    // Runs ops [first_op, last_op) on `num_threads` threads; see Pass.
    bool run(const Pass& pass, int first_op, int last_op, int num_threads);

   private:
    // Which experts the rows of a pass chose.
    struct Choice {
        std::vector<int32_t> chosen, places;  // [T][num_chosen]: experts, best first, and their pairs
        std::vector<float> shares;            // [T][num_chosen]
        std::vector<int32_t> rows;            // of each pair
        std::vector<int32_t> begins, wanted;  // first pair of each expert, and one after the last; experts with pairs
        std::atomic<int> num_wanted{1};  // read between steps too, by threads that may be late: never 0
    };
    struct Run {
        const Pass& pass;
        int first_op, last_op;
        const Kernels& kernels;
        Program* program;
        int first_row(const Op& op) const { return op.after_select ? pass.num_rows - pass.num_logit_rows : 0; }
        int num_rows(const Op& op) const { return op.after_select ? pass.num_logit_rows : pass.num_rows; }
    };
    void find_paths(const Pass& pass);
    void hold_states(const Pass& pass, int first_op, int last_op, bool are_computed);
    bool reserve(const Pass& pass, int num_threads);
    bool is_skipped(const Op& op, const Pass& pass) const;
    void work(const Run& run, Member& self);
    void embed(const Run& run, const Op& op, Slice rows);
    void norm(const Run& run, const Op& op, Slice rows);
    void tap(const Run& run, const Op& op, Slice rows);
    void gate(const Run& run, const Op& op, Slice rows);
    void norm_add(const Run& run, const Op& op, Slice rows);
    void norm_qk(const Run& run, const Op& op, Slice rows);
    void scale(const Run& run, const Op& op, Slice rows);
    void layer_inputs(const Run& run, const Op& op, Slice rows);
    void gate_input(const Run& run, const Op& op, Slice rows);
    void add(const Run& run, const Op& op, Slice rows);
    void sigmoid_mul(const Run& run, const Op& op, Slice rows);
    // Ops that divide their own work among the threads. False: the job is over, see Member.
    bool share_rows(const Run& run, const Op& op, Member& self, void (Program::*work)(const Run&, const Op&, Slice));
    bool linear(const Run& run, const Op& op, Member& self);
    bool rope_append(const Run& run, const Op& op, Member& self);
    bool attention(const Run& run, const Op& op, Member& self);
    bool convolve(const Run& run, const Op& op, Member& self);
    bool delta_net(const Run& run, const Op& op, Member& self);
    bool add_partials(const Run& run, const Op& op, Member& self);
    bool experts(const Run& run, const Op& op, Member& self);
    void choose_experts(const Run& run, const Op& op);
    bool multiply_experts(const Run& run, const Linear* linears, Rows rows, Output out, Member& self);
    void add_experts(const Run& run, const Op& op, Slice columns);
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
    Visibility visibility(const Run& run, const Op& op) const;
    // Largest number of rows in one call of attention, which determines the memory for its partial results.
    static int rows_together(const Pass& pass) {
        return pass.num_rows < ATTENTION_ROWS ? pass.num_rows : ATTENTION_ROWS;
    }
    int num_chunks(const Pass& pass) const { return (pass.first_slot + pass.num_rows - 1) / ATTENTION_CHUNK + 1; }

    const Shape shape_;
    const std::vector<Op> ops_;
    std::vector<Buffer> buffers_;
    int64_t widest_input_ = 0, widest_sum_ = 0;  // floats
    int64_t most_scratch_ = 0, most_result_ = 0;  // bytes: of attention, and of its result of one row and chunk
    Scratch shared_rows_, partials_;
    Choice choice_;
    int most_chosen_ = 0, most_experts_ = 0;  // of any op
    const Mixer* mixer_ = nullptr;  // of any layer that has one; their shapes are the same
    std::vector<RowPath> paths_;
    std::vector<int32_t> own_slots_;  // of the paths
    int64_t reach_ = 0;  // see Kernels::delta_net
    Scratch kept_;  // rows of the residual stream that skip the current sublayer
    std::vector<Scratch> own_;  // one per thread: prepared rows, a normed row, scratch for attention
};

}  // namespace forerun
