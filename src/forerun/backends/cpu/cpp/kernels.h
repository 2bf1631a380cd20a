// Arguments of the kernels, and the table of kernels, of which each instruction set has one.
//
// A kernel computes a slice: some panels, rows or heads. The program decides which thread computes which slice, and no
// result depends on that: every output of a row is computed from that row alone, in an order that depends neither on
// the slice nor on the other rows. This is why the exact mode costs nothing.
//
// Activations are float32 everywhere. Legend: T rows, K inputs of a linear, N outputs, D head size.
#pragma once
#include <cstdint>

namespace forerun {

constexpr int PANEL = 16;  // adjacent outputs in a packed weight: one vector of partial sums
constexpr int PAIRS_TOGETHER = 4;  // pairs of panels that are multiplied with a part of the inputs before the next part

// ggml's block formats, in the order of BLOCKS in model/gguf_block_types.py: name, and the fields of BlockLayout (blocks.h).
// In three parts, since the tiles of each part are a file of their own for the compiler.
#define FORERUN_FIRST_FORMATS(DO)                                                \
    DO(q4_0, 64, 32, 4, 8, false, Scales::plain, CodeTable::none, 32, 18)        \
    DO(q4_1, 32, 32, 4, 0, true, Scales::plain, CodeTable::none, 32, 20)         \
    DO(q5_0, 64, 32, 5, 16, false, Scales::plain, CodeTable::none, 32, 22)       \
    DO(q5_1, 32, 32, 5, 0, true, Scales::plain, CodeTable::none, 32, 24)         \
    DO(q8_0, 64, 32, 8, 128, false, Scales::plain, CodeTable::none, 32, 34)
#define FORERUN_K_FORMATS(DO)                                                    \
    DO(q4_k, 256, 32, 4, 0, true, Scales::nested, CodeTable::none, 256, 144)     \
    DO(q5_k, 256, 32, 5, 0, true, Scales::nested, CodeTable::none, 256, 176)     \
    DO(q6_k, 256, 16, 6, 32, false, Scales::nested, CodeTable::none, 256, 210)   \
    DO(q2_k, 256, 16, 2, 0, true, Scales::nibbles, CodeTable::none, 256, 84)     \
    DO(q3_k, 256, 16, 3, 4, false, Scales::nested, CodeTable::none, 256, 110)
#define FORERUN_TABLE_FORMATS(DO)                                                \
    DO(iq4_nl, 64, 32, 4, 128, false, Scales::plain, CodeTable::iq4, 32, 18)     \
    DO(iq4_xs, 256, 32, 4, 128, false, Scales::nested, CodeTable::iq4, 256, 136) \
    DO(mxfp4, 128, 32, 4, 12, false, Scales::powers, CodeTable::e2m1, 32, 17)
#define FORERUN_BLOCK_FORMATS(DO) FORERUN_FIRST_FORMATS(DO) FORERUN_K_FORMATS(DO) FORERUN_TABLE_FORMATS(DO)

#define FORERUN_NAME_OF(name, ...) name,
enum class Format : int32_t {
    f32 = 0, bf16 = 1, int8 = 2, int4 = 3, int8_wide = 4, FORERUN_BLOCK_FORMATS(FORERUN_NAME_OF)
};
#undef FORERUN_NAME_OF

// A packed weight. Panel p has the outputs 16p .. 16p+15; the last panel is padded with zeros. Inputs are padded with
// zeros to `padded_in`: a multiple of `group` for int8 and int4, of 2 for bf16, of a record's inputs for blocks.
//   f32        weights [panel][K][16] float
//   bf16       weights [panel][K/2][16][2] bfloat16
//   int8       weights [panel][K/4][16][4] uint8, the value plus 128; scales [panel][16] float
//   int4       weights [panel][K/8][16][4] uint8: low nibbles inputs 8i..8i+3, high nibbles 8i+4..8i+7;
//              scales [panel][K/group][16] float, zeros [panel][K/group][16] uint8: (q - zero) * scale
//   int8_wide  weights and scales as int8; inputs stay float
//   blocks     weights: records, see blocks.h; no scales, no zeros
// For int8 and int4 each row's inputs are rounded to int8 in groups of `group`, each with its own scale.
struct Linear {
    const void* weights;
    const float* scales;
    const uint8_t* zeros;
    const float* bias;  // [num_out] or null
    const Linear* below;  // a weight with the same inputs, whose outputs follow these, maybe in another format; or null
    int32_t format;     // a Format
    int32_t num_out, num_in, padded_in, group;
    int32_t paired;  // 0, or I: the weight is gate and up with I outputs each, in alternating panels
    int32_t input_bits;  // of blocks: inputs are rounded to 16 bits, or to 8 for more speed
    int32_t streams;  // 1: the model is larger than the caches, so its weights bypass them and other data stays cached
};

static inline int num_panels(const Linear& linear) {  // static: compiled with every tier's flags
    return linear.paired ? 2 * ((linear.paired + PANEL - 1) / PANEL) : (linear.num_out + PANEL - 1) / PANEL;
}

// Rows in the input format of a linear; row t starts at values + t * stride. Each input has input_bits() bits.
//   f32, int8_wide: float[padded_in]; bf16: bfloat16[padded_in], or the same numbers as floats
//   int8, int4: integers, scales float[T][padded_in / group], sums int32[T][padded_in / group]
//   blocks: groups of inputs, see blocks.h; group g of a row starts g * group_stride after its first. By tiles, sixteen rows
//           are `stride` apart, and their inputs lie as the matrix unit takes them (matrix_unit.h)
struct Rows {
    void* values;
    float* scales;
    int32_t* sums;
    int64_t stride;  // bytes, a multiple of 64 except for blocks
    int64_t group_stride;  // bytes
    bool by_tiles;
    int32_t num_rows;
};

// What is done with the products.
//   store        y[t][n] = x W^T + bias; if the weight is paired, y is [T][2I]: gate, then up
//   add          y[t][n] = residual[t][n] + (x W^T + bias); residual may be y itself
//   silu_mul     y[t][i] = silu(gate_i) * up_i; the weight is paired, y is [T][I]
//   gelu_mul     likewise, with the tanh approximation of GELU
//   clamped_mul  likewise, with the clamped gate of gpt-oss
//   capped       y[t][n] = cap tanh((x W^T + bias) / cap)
enum class Epilogue : int32_t { store = 0, add = 1, silu_mul = 2, gelu_mul = 3, clamped_mul = 4, capped = 5 };

static inline bool is_gate(Epilogue epilogue) {
    return epilogue >= Epilogue::silu_mul && epilogue <= Epilogue::clamped_mul;
}

struct Output {
    float* y;
    const float* residual;
    int64_t y_stride, residual_stride;  // floats
    Epilogue epilogue;
    float cap;
};

// The elements of a cache. A row of a head is its head_dim elements; of int8, codes with their scale, a float, behind them.
enum class CacheFormat : int32_t { f32 = 0, bf16 = 1, int8 = 2 };

static inline int element_bytes(CacheFormat format) {
    return format == CacheFormat::f32 ? 4 : format == CacheFormat::bf16 ? 2 : 1;
}
// Elements of a row of one head.
static inline int row_size(CacheFormat format, int head_dim) {
    return format == CacheFormat::int8 ? head_dim + static_cast<int>(sizeof(float)) : head_dim;
}

// One layer's keys and values in the cache: slot s, head h at s * slot_stride + h * row_size.
struct LayerCache {
    void* keys;
    void* values;
    CacheFormat format;
    int64_t slot_stride;  // elements
};

struct Heads {
    int32_t num_heads, num_kv_heads, head_dim;  // head_dim even
};

// The attention mask. Every row attends to all slots before prefix_len, and to those of the `num_tree` slots after them
// that are marked in its row of `ancestry`. Without `ancestry` it is causal: row t attends to first_slot + t + 1 slots.
// With a window, it attends only to the last `window` of these.
struct Visibility {
    int32_t num_rows, first_slot, prefix_len, num_tree;
    const uint8_t* ancestry;  // [T][num_tree] 0 or 1, or null
    int32_t window;           // slots, or 0 for none
    const uint8_t* known;     // [slots] 1 for a slot that holds a row, 0 for one that nothing attends to; null: all hold one
};

// What a layer has in place of attention: a gated delta net, or a short convolution, which has no heads. A row of slot s
// lies in the rings at s modulo num_slots, the state of place p at p / stride modulo num_states (model/mixer_rows.py).
struct Mixer {
    int32_t num_channels, kernel_size, num_slots, num_states;
    int32_t num_key_heads, num_value_heads, key_dim, value_dim, has_tiled_keys, stride, lag;
    const float* taps;        // [kernel_size][num_channels]
    const float* bias;        // [num_channels], or null
    const float* rates;       // [num_value_heads], of decays; decay_bias likewise
    const float* decay_bias;
    const float* scale;  // [value_dim], of each head's normalised output
    float* inputs;       // [num_slots][num_channels]
    float* rows;         // [num_slots]: keys of all key heads, updates of all value heads, and logarithms of their decays
    float* states;       // [num_states][num_value_heads][key_dim][value_dim]
    int64_t* held;       // the first and the last place with a state; 0 and 0: no place
};
constexpr int MOST_TAPS = 16;  // of kernel_size, as checkpoints/families has it

// A row's text before itself: the slots before `text_end`, then those of `own`. Its state sums up `place` tokens.
struct RowPath {
    int32_t place, text_end, num_own;
    const int32_t* own;
};

// Noise of one row: the two halves of its key, see forerun.sampling.noise; `is_noisy` is 0 for none.
struct RowNoise {
    int32_t low, high, is_noisy;
};

struct TopTwo {
    int32_t token;
    float best, second;  // totals of the best and second-best token; if there is a NaN or infinity, `best` is it
};

struct Kernels {
    const char* name;

    // Bits per prepared input of a linear with this instruction set.
    int (*input_bits)(const Linear& linear);

    // Bytes of a group of sixteen rows' inputs, if the products of this many rows take them by tiles; else 0.
    int (*tile_bytes)(const Linear& linear, int num_rows);

    // Converts rows t in [t_begin, t_end) of x [T][x_stride] to a linear's input format.
    void (*prepare)(const Linear& linear, const float* x, int64_t x_stride, int t_begin, int t_end, Rows out);

    // Products of T prepared rows with the panels [panel_begin, panel_end); pairs of panels must not be split.
    void (*linear)(const Linear& linear, Rows x, int num_rows, int panel_begin, int panel_end, Output out);

    // y = x / sqrt(mean(x^2) + eps) * weight for rows [t_begin, t_end).
    void (*rms_norm)(const float* x, int64_t x_stride, const float* weight, int size, float eps, int t_begin, int t_end,
                     float* y, int64_t y_stride);

    // y = silu(gate) * up for rows [t_begin, t_end), of `size` elements each; y may be the gate.
    void (*silu_mul)(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int size, int t_begin,
                     int t_end, float* y);
    // The same with the tanh approximation of GELU.
    void (*gelu_mul)(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int size, int t_begin,
                     int t_end, float* y);

    // Normalizes (unless weights are null) and rotates the heads [head_begin, head_end) of row t. Stores queries in
    // q [T][num_heads * head_dim], and keys and values in slot first_slot + t. Heads are numbered queries, keys,
    // values. cos_sin [P][2][D]: cosines, and sines whose first half is negated, see forerun.model.rope. Queries are
    // multiplied by query_scale at last. Values are normalized, without weights, if norms_values. Without key/value
    // heads nothing is stored.
    void (*rope_append)(const float* qkv, int row, int head_begin, int head_end, Heads heads, const float* cos_sin,
                        int position, const float* q_norm, const float* k_norm, bool norms_values, float eps,
                        float query_scale, float* q, LayerCache cache, int slot);

    // Attention of the queries of one key head for rows [t_begin, t_end) over chunk `chunk`. A logical position is a
    // slot's index in the row's own text; a chunk is ATTENTION_CHUNK logical positions. Writes for each row and query
    // head the largest score, the sum of exponentials and the unnormalised weighted sum of values to partial
    // [T][num_heads][2 + head_dim].
    void (*attend)(const float* q, Heads heads, LayerCache cache, int kv_head, int t_begin, int t_end, int chunk,
                   Visibility seen, float* partial, void* scratch);
    // Merges the partials of num_chunks chunks, `chunk_stride` floats apart, in order, into mixed
    // [T][num_heads * head_dim]. A chunk beyond a row's length has sum 0. `sinks` is null, or has a score for each head
    // that counts as one more slot whose values are 0.
    void (*join)(const float* partial, int64_t chunk_stride, int num_chunks, Heads heads, int t_begin, int t_end,
                 int head_begin, int head_end, const float* sinks, float* mixed);

    // x *= 1 / (1 + exp(-gate)) for rows [t_begin, t_end); a gate of one element is that of its whole row.
    void (*sigmoid_mul)(float* x, int size, const float* gate, int gate_size, int t_begin, int t_end);

    // Columns [begin, end) of a mixer's convolution for all rows, whose inputs go to their slots. See mixers.h.
    void (*convolve)(const Mixer& mixer, const float* in, int64_t in_stride, const RowPath* paths, int num_rows,
                     int first_slot, int begin, int end, float* out);
    // The value heads of one key head for all rows. `reach`: slots from the place of any row to the end of the pass, and
    // two vectors more. Advances the states up to the places of the rows.
    void (*delta_net)(const Mixer& net, const float* convolved, const float* in, int64_t in_stride, const RowPath* paths,
                      int num_rows, int first_slot, int key_head, int64_t reach, float eps, float* mixed, void* scratch);

    // The two best totals of scores[begin..end) divided by `temperature` plus noise; ties go to the lowest token.
    // `scratch` has room for end - begin floats.
    TopTwo (*sample)(const float* scores, int begin, int end, float temperature, RowNoise noise, float* scratch);
    // The `count` best tokens by score / temperature + noise, best first; returns the logarithm of the sum of
    // exponentials of all totals. `scratch` has room for `size` floats. `ids` are the tokens of the scores, ascending;
    // null for 0, 1, ...
    float (*topk)(const float* scores, int size, float temperature, RowNoise noise, const int32_t* ids, int count,
                  int32_t* tokens, float* totals, float* scratch);
};

constexpr int ATTENTION_CHUNK = 512;
constexpr int ATTENTION_ROWS = 16;  // largest number of rows in one call of attend

// Bytes of scratch memory for one call of attend.
int64_t attend_scratch_bytes(Heads heads);
// The same of delta_net.
int64_t mixer_scratch_bytes(const Mixer& net, int64_t reach);

}  // namespace forerun
