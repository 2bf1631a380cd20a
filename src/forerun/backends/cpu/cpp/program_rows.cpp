// The ops of a pass that compute rows one by one: embeddings, norms, gates, factors and taps.
#include <cstring>

#include "pack.h"
#include "program.h"

namespace forerun {

// Writes a token's row of a table to x.
static void read_token(const Table& table, int64_t token, int64_t size, float* x) {
    if (!table.values) return read_row(table.packed, token, x);
    if (!table.is_bf16) {
        std::memcpy(x, static_cast<const float*>(table.values) + token * size, static_cast<size_t>(size) * 4);
        return;
    }
    const uint16_t* narrow = static_cast<const uint16_t*>(table.values) + token * size;
    for (int64_t i = 0; i < size; i++) {
        const uint32_t bits = static_cast<uint32_t>(narrow[i]) << 16;
        std::memcpy(x + i, &bits, 4);
    }
}

void Program::embed(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.writes);
    for (int row = rows.begin; row < rows.end; row++) {
        float* x = buffer(op.writes) + row * size;
        read_token(shape_.table, run.pass.token_ids[row], size, x);
        if (shape_.embedding_scale != 1.0f)
            for (int64_t i = 0; i < size; i++) x[i] *= shape_.embedding_scale;
    }
}

void Program::norm(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.reads);
    const int first = run.first_row(op);
    run.kernels.rms_norm(buffer(op.reads) + first * size, size, op.norm, static_cast<int>(size), shape_.eps, rows.begin,
                         rows.end, buffer(op.writes), size);
}

void Program::gate(const Run& run, const Op& op, Slice rows) {
    const int size = static_cast<int>(width(op.writes));
    const float* gate = buffer(op.reads);
    const auto gate_mul =
        op.kind == static_cast<int32_t>(OpKind::silu_mul) ? run.kernels.silu_mul : run.kernels.gelu_mul;
    gate_mul(gate, 2 * size, gate + size, 2 * size, size, rows.begin, rows.end, buffer(op.writes));
}

// Adds the norm of a branch to the residual stream, except in rows that skip its sublayer.
void Program::norm_add(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.writes);
    for (int row = rows.begin; row < rows.end; row++) {
        const uint8_t* skips = run.pass.row_skips;
        if (skips && op.sublayer >= 0 && skips[static_cast<int64_t>(row) * shape_.num_sublayers + op.sublayer]) continue;
        float* branch = buffer(op.reads) + row * size;
        float* x = buffer(op.writes) + row * size;
        run.kernels.rms_norm(branch, size, op.norm, static_cast<int>(size), shape_.eps, 0, 1, branch, size);
        for (int64_t i = 0; i < size; i++) x[i] += branch[i];
    }
}

// Adds a branch to the residual stream, except in rows that skip its sublayer.
void Program::add(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.writes);
    for (int row = rows.begin; row < rows.end; row++) {
        const uint8_t* skips = run.pass.row_skips;
        if (skips && skips[static_cast<int64_t>(row) * shape_.num_sublayers + op.sublayer]) continue;
        const float* branch = buffer(op.reads) + row * size;
        float* x = buffer(op.writes) + row * size;
        for (int64_t i = 0; i < size; i++) x[i] += branch[i];
    }
}

// writes[t] *= sigmoid(gate[t]).
void Program::sigmoid_mul(const Run& run, const Op& op, Slice rows) {
    run.kernels.sigmoid_mul(buffer(op.writes), static_cast<int>(width(op.writes)), buffer(op.residual),
                            static_cast<int>(width(op.residual)), rows.begin, rows.end);
}

// Normalizes all queries of a row together, and all its keys, in place.
void Program::norm_qk(const Run& run, const Op& op, Slice rows) {
    const int64_t stride = width(op.reads);
    const int q_size = op.heads.num_heads * op.heads.head_dim, kv_size = op.heads.num_kv_heads * op.heads.head_dim;
    float* qkv = buffer(op.reads);
    run.kernels.rms_norm(qkv, stride, op.q_norm, q_size, shape_.eps, rows.begin, rows.end, qkv, stride);
    run.kernels.rms_norm(qkv + q_size, stride, op.k_norm, kv_size, shape_.eps, rows.begin, rows.end, qkv + q_size,
                         stride);
}

// features[t][index of the layer] = x[t].
void Program::tap(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.reads), place = run.pass.taps[op.layer];
    for (int64_t row = rows.begin; row < rows.end; row++)
        std::memcpy(run.pass.features + (row * run.pass.num_taps + place) * size, buffer(op.reads) + row * size,
                    static_cast<size_t>(size) * 4);
}

// x = factor x.
void Program::scale(const Run&, const Op& op, Slice rows) {
    const int64_t size = width(op.writes);
    float* x = buffer(op.writes);
    for (int64_t i = rows.begin * size; i < rows.end * size; i++) x[i] *= op.factor;
}

// writes[t] = (norm(factor reads[t]) + the token's embeddings) / sqrt(2), of all layers; each layer's part is normalized
// by itself.
void Program::layer_inputs(const Run& run, const Op& op, Slice rows) {
    const int64_t width = this->width(op.writes), size = shape_.layer_input_size;
    const float half_root = 0.70710678118654752f;
    for (int row = rows.begin; row < rows.end; row++) {
        float *projected = buffer(op.reads) + row * width, *x = buffer(op.writes) + row * width;
        read_token(shape_.layer_table, run.pass.token_ids[row], width, x);
        for (int64_t i = 0; i < width; i++) projected[i] *= op.factor;
        run.kernels.rms_norm(projected, size, op.norm, static_cast<int>(size), shape_.eps, 0,
                             static_cast<int>(width / size), projected, size);
        for (int64_t i = 0; i < width; i++) x[i] = (projected[i] + x[i] * shape_.layer_table_scale) * half_root;
    }
}

// writes[t] = gelu(reads[t]) times the token's input of the layer.
void Program::gate_input(const Run& run, const Op& op, Slice rows) {
    const int64_t size = width(op.writes);
    run.kernels.gelu_mul(buffer(op.reads), size, buffer(op.residual) + op.layer * size, width(op.residual),
                         static_cast<int>(size), rows.begin, rows.end, buffer(op.writes));
}

}  // namespace forerun
